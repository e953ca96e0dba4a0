"""Counts, logs and traces every request once, when it has ended."""

from __future__ import annotations

import functools
import logging
import math
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from aiohttp import web

from frontend import errors
from frontend.errors import APIError, ModelNotReady, NotFound
from frontend.request_context import CLIENT_CLOSED, FACTS, RequestFacts
from frontend.settings import Settings
from frontend.stream_record import StreamRecord
from frontend.telemetry import definitions
from frontend.telemetry.definitions import UNKNOWN, Metric
from frontend.telemetry.log_lines import REQUEST_LOGGER, labels_text, log_fields
from frontend.telemetry.metrics import Metrics
from frontend.telemetry.tracing import RequestTracer
from frontend.triton.endpoints import Endpoints
from model_repository.contract.output import DeviceState, EngineStats, FinishReason
from model_repository.contract.tensors import ensemble_to_model_id, replica_suffix

logger = logging.getLogger(REQUEST_LOGGER)

_MAX_SHOWN_MODEL = 256  # characters of the client's model name in the log
_SHED = (429, 503)
_SHED_CODES = sorted(
    {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, APIError) and each.status in _SHED and each.code
    }
)
_CANCELLED, _ERROR = "cancelled", "error"  # outcomes of a completion without a finish reason


class _OfModel:
    """The series of a model's completions, looked up once."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        def series(metric: Metric) -> Any:
            return metrics.series(metric, model)

        self.request, self.choices = series(definitions.REQUEST), series(definitions.REQUEST_CHOICES)
        self.gaps, self.ttft = series(definitions.INTER_TOKEN_LATENCY), series(definitions.TTFT)
        self.max_tokens = series(definitions.REQUEST_MAX_TOKENS)
        self.request_input_tokens = series(definitions.REQUEST_INPUT_TOKENS)
        self.request_output_tokens = series(definitions.REQUEST_OUTPUT_TOKENS)
        self.tokenization, self.queue = series(definitions.TOKENIZATION), series(definitions.QUEUE)
        self.prefill, self.decode = series(definitions.PREFILL), series(definitions.DECODE)
        self.inference, self.per_token = series(definitions.INFERENCE), series(definitions.TIME_PER_OUTPUT_TOKEN)
        self.output_tokens, self.input_tokens = series(definitions.OUTPUT_TOKENS), series(definitions.INPUT_TOKENS)
        self.cached_tokens = series(definitions.CACHED_TOKENS)


class Observer:
    """The metrics, log lines and traces of an application.

    Args:
        settings: the options of metrics.
        tracer: None: no traces.
    """

    def __init__(self, settings: Settings, tracer: RequestTracer | None = None) -> None:
        self.metrics = Metrics()
        self.tracer = tracer
        self.has_vllm_names = settings.metrics_compat == "vllm"
        self._is_by_key = settings.metrics_by_key
        self._of_models: dict[str, _OfModel] = {}
        self.engines: dict[tuple[str, str], EngineStats | None] = {}  # by model and engine; None: not loaded
        self._ensembles: dict[str, dict[str, str]] = {}  # by endpoint: ensembles with their last value of ENGINE_UP
        for model in Endpoints.parse(settings.triton_endpoints).expected:
            self._begin_at_zero(model)

    def begin_generation(self, facts: RequestFacts) -> None:
        """Count a request as in flight until its end, once."""
        if facts.is_in_flight:
            return
        facts.is_in_flight = True
        self.metrics.series(definitions.IN_FLIGHT, facts.served_model).inc()
        self.metrics.flush_soon()

    def end_request(self, request: web.Request, status: int) -> None:
        """Count, trace and log a request; `status` is 499 if the client hung up."""
        facts, resource = request[FACTS], request.match_info.route.resource
        endpoint = UNKNOWN if resource is None else resource.canonical
        total_s = time.monotonic() - facts.started_at
        self._count(facts, endpoint, status)
        if facts.is_in_flight:
            self.metrics.series(definitions.IN_FLIGHT, facts.served_model).inc(-1)
        if facts.stream is not None:
            self._count_stream(facts, facts.stream, total_s)
        self.metrics.flush_soon()
        if self.tracer is not None:
            self.tracer.end(facts, method=request.method, endpoint=endpoint, status=status)
        level = _level(request, status if facts.error is None else facts.error.status)
        if logger.isEnabledFor(level):
            of_request = request, status, total_s
            log_fields(logger, level, functools.partial(_text, *of_request), functools.partial(_fields, *of_request))

    def note_engine(self, endpoint: str, ensemble: str, result: EngineStats | APIError) -> None:
        """Set the gauges of an engine at an endpoint, from the result of a health check."""
        model, known = ensemble_to_model_id(ensemble), self._ensembles.setdefault(endpoint, {})
        if ensemble not in known:
            self._begin_at_zero(model)
        gauges: dict[Metric, float] = {}
        match result:
            case EngineStats():
                gauges = {
                    definitions.ENGINE_UP: 1,
                    definitions.RUNNING: result.num_active,
                    definitions.WAITING: result.num_waiting,
                    definitions.KV_CACHE_USAGE: _kv_cache_usage(result),
                    definitions.KV_CACHE_MAX_TOKENS: math.nan if result.max_kv_tokens is None else result.max_kv_tokens,
                    definitions.CANCEL_TO_FREE: result.last_cancel_to_free_ms / 1000,
                }
            case ModelNotReady() | NotFound():  # the model is not loaded: neither up nor down
                empty = (
                    definitions.RUNNING,
                    definitions.WAITING,
                    definitions.KV_CACHE_USAGE,
                    definitions.KV_CACHE_MAX_TOKENS,
                )
                gauges = dict.fromkeys(empty, 0)
                gauges[definitions.ENGINE_UP] = math.nan
            case _:
                gauges = {definitions.ENGINE_UP: 0}
        up = str(gauges[definitions.ENGINE_UP])  # as a text, since NaN does not equal itself
        if known.get(ensemble) != up:
            known[ensemble] = up
            gauges[definitions.ENGINE_UP_SINCE] = time.time()
        place = model, endpoint + replica_suffix(ensemble)
        before, after = self.engines.get(place), result if isinstance(result, EngineStats) else None
        self.engines[place] = after
        for gauge, value in gauges.items():
            self.metrics.series(gauge, *place).set(value)
        states: dict[str, DeviceState | None] = dict.fromkeys(before.devices if before else ())
        for name, state in (states | dict(after.devices if after else {})).items():
            self.metrics.series(definitions.DEVICE_USED, *place, name).set(state.used_bytes if state else 0)
            self.metrics.series(definitions.DEVICE_FREE, *place, name).set(state.free_bytes if state else math.nan)

    def forget(self, endpoint: str) -> None:
        """Reset the gauges of an endpoint that is gone for good."""
        for ensemble in tuple(self._ensembles.get(endpoint, ())):
            self.note_engine(endpoint, ensemble, ModelNotReady("The endpoint is gone."))
            del self.engines[ensemble_to_model_id(ensemble), endpoint + replica_suffix(ensemble)]
        self._ensembles.pop(endpoint, None)

    def _begin_at_zero(self, model: str) -> None:
        """Export rare events with the value 0: to Prometheus, a series that begins at 1 has not grown."""
        self.metrics.series(definitions.IN_FLIGHT, model)
        self.metrics.series(definitions.CANCELLED, model)
        self.metrics.series(definitions.RESUMED, model)
        for code in _SHED_CODES:
            self.metrics.series(definitions.SHED, model, code)
        for outcome in (*FinishReason, _CANCELLED, _ERROR):
            self.metrics.series(definitions.COMPLETIONS, model, outcome)

    def _count(self, facts: RequestFacts, endpoint: str, status: int) -> None:
        series, model = self.metrics.series, facts.served_model
        series(definitions.REQUESTS, model, endpoint, str(status)).inc()
        if facts.error_code == CLIENT_CLOSED:
            series(definitions.CANCELLED, model).inc()
        elif facts.error is not None:
            code = type(facts.error).code or UNKNOWN  # the class's code: single errors have too many
            series(definitions.ERRORS, model, code).inc()
            if facts.error.status in _SHED:
                series(definitions.SHED, model, code).inc()
        if self._is_by_key:
            series(definitions.KEY_REQUESTS, facts.caller.name).inc()
            if facts.stream is not None:
                series(definitions.KEY_INPUT_TOKENS, facts.caller.name).inc(facts.stream.num_input_tokens)
                series(definitions.KEY_OUTPUT_TOKENS, facts.caller.name).inc(facts.stream.num_output_tokens)

    def _count_stream(self, facts: RequestFacts, record: StreamRecord, total_s: float) -> None:
        model = facts.served_model
        if (series := self._of_models.get(model)) is None:
            series = self._of_models[model] = _OfModel(self.metrics, model)
        series.request.observe(total_s)
        if record.num_resumed:
            self.metrics.series(definitions.RESUMED, model).inc(record.num_resumed)
        series.choices.observe(record.num_per_prompt)
        if record.gaps_s:
            series.gaps.add(record.gap_counts, record.gaps_s)
        if (ttft_s := facts.ttft_s) is not None:
            # Without a stream the first chunk comes with the last token: decoding does not count.
            phases = record.completions[0].phases
            decode_s = 0.0 if record.is_stream or phases is None else phases.decode_s
            series.ttft.observe(max(0.0, ttft_s - decode_s))
        num_output_tokens = num_input_tokens = num_cached_tokens = 0
        for index, each in enumerate(record.completions):
            series.max_tokens.observe(each.request.params.max_tokens)
            usage, phases = each.usage, each.phases
            self.metrics.series(definitions.COMPLETIONS, model, _outcome(facts, each.finish_reason)).inc()
            if usage is not None:
                num_output_tokens += usage.num_output_tokens
                if index % record.num_per_prompt == 0:  # the completions of one prompt count it once, as for the client
                    num_input_tokens += usage.num_input_tokens
                    num_cached_tokens += usage.num_cached_tokens
                if each.finish_reason is not None:
                    series.request_input_tokens.observe(usage.num_input_tokens)
                    series.request_output_tokens.observe(usage.num_output_tokens)
            if phases is not None:
                series.tokenization.observe(phases.tokenization_s)
                series.queue.observe(phases.queue_s)
                series.prefill.observe(phases.prefill_s)
                series.decode.observe(phases.decode_s)
                series.inference.observe(phases.prefill_s + phases.decode_s)
                if usage is not None and usage.num_output_tokens > 1:
                    series.per_token.observe(phases.decode_s / (usage.num_output_tokens - 1))
        series.output_tokens.inc(num_output_tokens)
        series.input_tokens.inc(num_input_tokens)
        series.cached_tokens.inc(num_cached_tokens)


def _kv_cache_usage(stats: EngineStats) -> float:
    if stats.num_kv_tokens_used is None or stats.max_kv_tokens is None:
        return math.nan
    return stats.num_kv_tokens_used / max(1, stats.max_kv_tokens)


def _level(request: web.Request, status: int) -> int:
    """Return the level of a request's line; `status` is the error's, also behind the status of a stream."""
    if request.path.startswith(("/health", "/metrics")):
        return logging.DEBUG
    is_failure = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.SERVICE_UNAVAILABLE
    return logging.WARNING if is_failure else logging.INFO


def _text(request: web.Request, status: int, total_s: float) -> str:
    """Return a request's log line for people."""
    facts = request[FACTS]
    record, ttft_s = facts.stream, facts.ttft_s
    num_input, num_output = (0, 0) if record is None else (record.num_input_tokens, record.num_output_tokens)
    return (
        f"{request.method} {request.rel_url.raw_path} request_id={facts.request_id} id={facts.id}"
        f" key={_quoted(facts.caller.name)} model={_quoted(facts.model[:_MAX_SHOWN_MODEL])} status={status}"
        f" error={facts.error_code or '-'} input_tokens={num_input} output_tokens={num_output}"
        f" ttft_ms={'-' if ttft_s is None else f'{ttft_s * 1000:.0f}'} ms={total_s * 1000:.0f}"
        f"{labels_text(facts.labels)}"
    )


@functools.lru_cache
def _quoted(name: str) -> str:
    return quote(name, safe="/:@+")


def _fields(request: web.Request, status: int, total_s: float) -> dict[str, Any]:
    """Return a request's log line for machines. It never has a prompt, a completion or a key."""
    facts = request[FACTS]
    record = facts.stream
    fields: dict[str, Any] = {
        "event": "request",
        "method": request.method,
        "path": request.rel_url.raw_path,
        "request_id": facts.request_id,
        "id": facts.id,
        "key_name": facts.caller.name,
        "model": facts.model[:_MAX_SHOWN_MODEL],
        "served_model": facts.served_model,
        "status": status,
        "error": facts.error_code,
        "input_tokens": 0 if record is None else record.num_input_tokens,
        "output_tokens": 0 if record is None else record.num_output_tokens,
        "ttft_ms": None if facts.ttft_s is None else round(facts.ttft_s * 1000, 3),
        "total_ms": round(total_s * 1000, 3),
        "labels": facts.labels,
    }
    if facts.trace_id:
        fields["trace_id"] = facts.trace_id
    if record is not None:
        fields["stream"] = record.is_stream
        fields["finish_reasons"] = [completion.finish_reason for completion in record.completions]
        fields["cached_tokens"] = sum(each.usage.num_cached_tokens for each in record.completions if each.usage)
        if (phases := record.slowest) is not None:
            fields["tokenize_ms"] = round(phases.tokenization_s * 1000, 3)
            fields["queue_ms"] = round(phases.queue_s * 1000, 3)
            fields["prefill_ms"] = round(phases.prefill_s * 1000, 3)
            fields["decode_ms"] = round(phases.decode_s * 1000, 3)
    return fields


def _outcome(facts: RequestFacts, reason: FinishReason | None) -> str:
    if reason is not None:
        return reason
    return _CANCELLED if facts.error_code == CLIENT_CLOSED else _ERROR


OBSERVER = web.AppKey("observer", Observer)
