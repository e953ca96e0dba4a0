"""Every metric that the frontend exports: its name, type, labels, meaning and vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from frontend.stream_record import GAP_S

type GaugeMode = Literal["livesum", "livemostrecent"]  # how the values of several workers become one


class Kind(StrEnum):
    """Types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. Times are in seconds."""

    name: str  # counters end in `_total`
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ("model",)
    buckets: tuple[float, ...] = ()  # a histogram's upper bounds
    gauge_mode: GaugeMode = "livesum"
    vllm: tuple[str, ...] = ()  # names in vLLM


_PHASE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
_REQUEST_S = (*_SHORT_S, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 1920)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)

_OF_AN_ENGINE = ("model", "triton")


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *vllm: str) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, meaning=meaning, buckets=buckets, vllm=vllm)


def _counter(name: str, meaning: str, *further_labels: str, vllm: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, meaning=meaning, labels=("model", *further_labels), vllm=vllm)


def _key_counter(name: str, counted: str) -> Metric:
    meaning = f"{counted} by name of the key; only with `--metrics-by-key`."
    return Metric(name=name, kind=Kind.COUNTER, meaning=meaning, labels=("key",))


def _engine_gauge(name: str, meaning: str, *vllm: str) -> Metric:
    return Metric(
        name=name, kind=Kind.GAUGE, meaning=meaning, labels=_OF_AN_ENGINE, gauge_mode="livemostrecent", vllm=vllm
    )


def _device_gauge(kind: str, meaning: str) -> Metric:
    labels = (*_OF_AN_ENGINE, "device")
    name = f"conch_device_{kind}_bytes"
    return Metric(name=name, kind=Kind.GAUGE, meaning=meaning, labels=labels, gauge_mode="livemostrecent")


def _stored_gauge(name: str, counted: str) -> Metric:
    meaning = f"{counted} for all keys, each minute."
    return Metric(name=name, kind=Kind.GAUGE, meaning=meaning, labels=(), gauge_mode="livemostrecent")


TTFT = _histogram(
    "conch_time_to_first_token_seconds",
    "From the arrival of a request to its first token, without streaming too.",
    _PHASE_S,
    "vllm:time_to_first_token_seconds",
)
INTER_TOKEN_LATENCY = _histogram(
    "conch_inter_token_latency_seconds",
    "Time between two chunks of one stream; a chunk may have several tokens.",
    GAP_S,
    "vllm:inter_token_latency_seconds",
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "conch_time_per_output_token_seconds",
    "Decode time of a completion divided by its tokens after the first.",
    GAP_S,
    "vllm:request_time_per_output_token_seconds",
)
REQUEST = _histogram(
    "conch_request_seconds",
    "From the arrival of a generation request to the end of its answer, errors included.",
    _REQUEST_S,
    "vllm:e2e_request_latency_seconds",
)
TOKENIZATION = _histogram(
    "conch_tokenization_seconds",
    "Time to the first token outside the engine: the tokenizer stage, and the way to Triton and back.",
    _PHASE_S,
)
QUEUE = _histogram(
    "conch_queue_seconds",
    "Time of a completion in the engine's queue.",
    _PHASE_S,
    "vllm:request_queue_time_seconds",
)
PREFILL = _histogram(
    "conch_prefill_seconds",
    "From the end of the queue to the first token of a completion.",
    _PHASE_S,
    "vllm:request_prefill_time_seconds",
)
DECODE = _histogram(
    "conch_decode_seconds",
    "From the first token of a completion to its last.",
    _REQUEST_S,
    "vllm:request_decode_time_seconds",
)
INFERENCE = _histogram(
    "conch_inference_seconds",
    "Prefill and decode of a completion together.",
    _REQUEST_S,
    "vllm:request_inference_time_seconds",
)
REQUEST_INPUT_TOKENS = _histogram(
    "conch_request_input_tokens", "Prompt tokens of a completion.", _TOKENS, "vllm:request_prompt_tokens"
)
REQUEST_OUTPUT_TOKENS = _histogram(
    "conch_request_output_tokens", "Tokens of a completion.", _TOKENS, "vllm:request_generation_tokens"
)
REQUEST_CHOICES = _histogram(
    "conch_request_choices",
    "Completions for each prompt of a request.",
    (1, 2, 5, 10, 20, 50, 100),
    "vllm:request_params_n",
)
REQUEST_MAX_TOKENS = _histogram(
    "conch_request_max_tokens",
    "Largest number of tokens that a completion may have.",
    _TOKENS,
    "vllm:request_params_max_tokens",
)

INPUT_TOKENS = _counter(
    "conch_input_tokens_total",
    "Prompt tokens of completions, also of those that were cut.",
    vllm=("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total"),
)
CACHED_TOKENS = _counter(
    "conch_cached_tokens_total",
    "Prompt tokens that the engine had in its KV cache.",
    vllm=("vllm:prefix_cache_hits_total",),
)
OUTPUT_TOKENS = _counter(
    "conch_output_tokens_total",
    "Tokens of completions, also of those that were cut.",
    vllm=("vllm:generation_tokens_total",),
)
COMPLETIONS = _counter(
    "conch_completions_total",
    "Completions by finish reason: stop, length, cancelled (the client disconnected) or error.",
    "finish_reason",
    vllm=("vllm:request_success_total",),
)
REQUESTS = _counter("conch_requests_total", "HTTP requests; `endpoint` is the route.", "endpoint", "status")
ERRORS = _counter("conch_errors_total", "Requests that ended with an error, as a status or inside a stream.", "code")
SHED = _counter(
    "conch_shed_total",
    "Requests refused with 429 or 503. The code model_not_ready means that no endpoint serves the model.",
    "code",
    vllm=("vllm:admission_rejections_total",),
)
RESUMED = _counter(
    "conch_resumed_total",
    "Completions that went on after the death of their engine, or of a part on the way to it; each time.",
)
CANCELLED = _counter("conch_cancelled_total", "Requests whose client disconnected before the end of the answer.")

IN_FLIGHT = Metric(name="conch_requests_in_flight", kind=Kind.GAUGE, meaning="Running and waiting generation requests.")
TASKS = Metric(name="conch_tasks", kind=Kind.GAUGE, meaning="Tasks of the frontend's event loop.", labels=())
RUNNING = _engine_gauge(
    "conch_requests_running", "Completions in the running batch of the engine.", "vllm:num_requests_running"
)
WAITING = _engine_gauge("conch_requests_waiting", "Completions in the engine's queue.", "vllm:num_requests_waiting")
KV_CACHE_USAGE = _engine_gauge(
    "conch_kv_cache_usage_ratio",
    "Share of the KV cache that running completions use; NaN if the engine does not know it.",
    "vllm:kv_cache_usage_perc",
)
ENGINE_UP = _engine_gauge(
    "conch_engine_up", "Whether the engine answered the last health check: 1 or 0; NaN if the model is not loaded."
)
ENGINE_UP_SINCE = _engine_gauge("conch_engine_up_since_seconds", "Unix time since which conch_engine_up has its value.")
KV_CACHE_MAX_TOKENS = _engine_gauge(
    "conch_kv_cache_max_tokens", "Tokens that fit in the KV cache; NaN if the engine does not know it."
)
DEVICE_USED = _device_gauge("used", "Memory of a graphics card that the engine takes, as planned.")
DEVICE_FREE = _device_gauge("free", "Memory of a graphics card that no program takes.")
CANCEL_TO_FREE = _engine_gauge(
    "conch_cancel_to_free_seconds", "From the arrival of the last cancel at the engine to its memory being free."
)

STORED_OBJECTS = _stored_gauge("conch_stored_objects", "Answers, chats and conversations that are stored")
STORED_BYTES = _stored_gauge("conch_stored_bytes", "Bytes that are stored")
STORE_CALLS = Metric(
    name="conch_store_calls_total",
    kind=Kind.COUNTER,
    meaning="Calls of the place of stored conversations, by result: ok or failed.",
    labels=("result",),
)

KEY_REQUESTS = _key_counter("conch_key_requests_total", "HTTP requests")
KEY_INPUT_TOKENS = _key_counter("conch_key_input_tokens_total", "Prompt tokens")
KEY_OUTPUT_TOKENS = _key_counter("conch_key_output_tokens_total", "Tokens of completions")

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
UNKNOWN = "unknown"  # the label of unserved models and unknown routes
