"""Every tensor of every stage: name, datatype, shape. The only place where a tensor is spelled.

The ensemble's public names are those of NVIDIA's TensorRT-LLM ensemble, so that its gRPC clients work unchanged;
ours stand beside them. All shapes are without the batch dimension, which is always 1: a client sends [1, *shape].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMPY_DTYPES: dict[str, Any] = {
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
}

MAX_STREAM_INTERVAL_MS = 1000  # a reader waits no longer, whatever is asked
MAX_TOKENIZER_BATCH = 8  # requests: together they cost a third less


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: `datatype` in KServe's words, `shape` with -1 for any length.

    `low` and `high` are the range of each of its numbers, ends included unless `is_low_open`. `neutral` marks an input
    that we declare for NVIDIA's clients but cannot honour yet: the listed values change nothing and are accepted, any
    other is refused.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = (1,)
    is_optional: bool = True
    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    neutral: tuple[Any, ...] | None = None
    doc: str = ""

    @property
    def dtype(self) -> Any:
        """The numpy dtype of its elements; object (of bytes) for BYTES."""
        return _NUMPY_DTYPES[self.datatype]


# --- the ensemble's public inputs, all of which the tokenizer stage reads -------------------------------------------
# The prompt: exactly one of the first three.
TEXT_INPUT = TensorSpec("text_input", "BYTES", doc="prompt as text; strings of added tokens in it are parsed")
MESSAGES = TensorSpec("messages", "BYTES", doc="JSON list of chat messages, rendered by the model's chat template")
INPUT_IDS = TensorSpec("input_ids", "INT32", (-1,), doc="prompt as token ids")
SUFFIX = TensorSpec(
    "suffix", "BYTES", doc="with text_input: fill in the middle between the two, by the model's own tokens"
)
TOOLS = TensorSpec(
    "tools", "BYTES", doc="with messages: JSON list of OpenAI's tool objects, `strict` among their fields"
)
TOOL_CHOICE = TensorSpec("tool_choice", "BYTES", doc="`none`, `auto` (default), `required` or `function:NAME`")
PARALLEL_TOOL_CALLS = TensorSpec("parallel_tool_calls", "BOOL", doc="true (default): more than one call may follow")
CHAT_TEMPLATE_KWARGS = TensorSpec("chat_template_kwargs", "BYTES", doc="JSON object: further names for the template")
ADD_GENERATION_PROMPT = TensorSpec("add_generation_prompt", "BOOL", doc="true (default): open the assistant's turn")
CONTINUE_FINAL_MESSAGE = TensorSpec(
    "continue_final_message", "BOOL", doc="true: go on with the last message; add_generation_prompt must be false"
)
IMAGES = TensorSpec("images", "BYTES", (-1,), doc="image files, one for each place in the prompt")
CONTEXT_LENGTH_EXCEEDED_BEHAVIOR = TensorSpec(
    "context_length_exceeded_behavior",
    "BYTES",
    doc="`truncate` (default): max_tokens is lowered to what the context window leaves; `error`: refuse",
)
LORA_NAME = TensorSpec("lora_name", "BYTES", doc="one of the model's LoRA adapters; empty: none")
# What ends the completion.
MAX_TOKENS = TensorSpec(
    "max_tokens", "INT32", low=0, doc="at most so many completion tokens (default 16); 0 only to score an echoed prompt"
)
MIN_TOKENS = TensorSpec("min_tokens", "INT32", low=0, doc="before it neither end tokens nor stop words end it")
MAX_STOP_WORDS = 16  # each token is compared with each stop word: 16 cost 3 us more per token than OpenAI's 4
STOP_WORDS = TensorSpec(
    "stop_words", "BYTES", (-1,), doc=f"texts that end the completion, {MAX_STOP_WORDS} at most; left out of it"
)
MAX_BAD_WORDS, MAX_BAD_WORD_CHARS = 256, 256
BAD_WORDS = TensorSpec(
    "bad_words",
    "BYTES",
    (-1,),
    doc=f"texts that the completion does not contain: {MAX_BAD_WORDS} of {MAX_BAD_WORD_CHARS} characters at most",
)
STOP_TOKEN_IDS = TensorSpec("stop_token_ids", "INT32", (-1,), low=0, doc="tokens that end it; left out of its text")
INCLUDE_STOP_STR_IN_OUTPUT = TensorSpec("include_stop_str_in_output", "BOOL", doc="true: the text keeps what ended it")
IGNORE_EOS = TensorSpec("ignore_eos", "BOOL", doc="true: the model's own end tokens do not end it")
# How tokens are drawn.
TEMPERATURE = TensorSpec(
    "temperature", "FP32", low=0, high=2, doc="0 is greedy, as is sending none of the sampling inputs"
)
TOP_P = TensorSpec("top_p", "FP32", low=0, high=1, doc="0 keeps only the most likely token")
TOP_K = TensorSpec("top_k", "INT32", low=-1, doc="0 or -1 is off")
MIN_P = TensorSpec("min_p", "FP32", low=0, high=1, doc="0 is off")
REPETITION_PENALTY = TensorSpec(
    "repetition_penalty", "FP32", low=0, high=2, is_low_open=True, doc="over prompt and completion; 1 is off"
)
PRESENCE_PENALTY = TensorSpec("presence_penalty", "FP32", low=-2, high=2, doc="over the completion")
FREQUENCY_PENALTY = TensorSpec("frequency_penalty", "FP32", low=-2, high=2, doc="over the completion")
LOGIT_BIAS_TOKEN_IDS = TensorSpec("logit_bias_token_ids", "INT32", (-1,), low=0, doc="tokens to bias")
LOGIT_BIAS_VALUES = TensorSpec(
    "logit_bias_values", "FP32", (-1,), low=-100, high=100, doc="one for each of them; -100 bans, 100 forces"
)
MIROSTAT_TARGET = TensorSpec(
    "mirostat_target",
    "FP32",
    low=0,
    high=20,
    doc="bits of surprise; sent, Mirostat 2.0 replaces top_p, top_k and min_p",
)
MIROSTAT_LR = TensorSpec(
    "mirostat_lr", "FP32", low=0, high=1, is_low_open=True, doc="its learning rate (default 0.1); sent, it is on"
)
SEED = TensorSpec(
    "seed",
    "UINT64",
    doc="same seed and inputs, same text, but on TensorRT-LLM's PyTorch backend; without it a random one",
)
GUIDED_DECODING_GUIDE_TYPE = TensorSpec(
    "guided_decoding_guide_type",
    "BYTES",
    doc="`json`, `json_schema`, `regex`, `choice` or `ebnf_grammar`; empty: none",
)
GUIDED_DECODING_GUIDE = TensorSpec("guided_decoding_guide", "BYTES", doc="the schema, expression, list or grammar")
GUIDED_DECODING_STRICT = TensorSpec(
    "guided_decoding_strict",
    "BOOL",
    doc="with a JSON schema; true (default): a keyword that cannot be enforced is refused; false: it is ignored",
)
SENDER = TensorSpec(
    "sender",
    "BYTES",
    doc="name of the sender: grammars of one sender are compiled one after the other, and share their limits",
)
# What is answered, and how.
EXCLUDE_INPUT_IN_OUTPUT = TensorSpec("exclude_input_in_output", "BOOL", doc="true (default); false: echo the prompt")
RETURN_LOG_PROBS = TensorSpec(
    "return_log_probs", "BOOL", doc="true: log probabilities of the text's tokens, an echoed prompt's among them"
)
TOP_LOGPROBS = TensorSpec(
    "top_logprobs", "INT32", low=0, high=20, doc="with return_log_probs: also those of so many most likely tokens"
)
RETURN_PERF_METRICS = TensorSpec("return_perf_metrics", "BOOL", doc="true: when things happened to the sequence")
RETURN_TOKEN_IDS = TensorSpec("return_token_ids", "BOOL", doc="true: the ids of the text's and the prompt's tokens")
RETURN_USAGE = TensorSpec("return_usage", "BOOL", doc="with stream: every response has the token counts so far")
STREAM = TensorSpec("stream", "BOOL", doc="false (default): one response with the whole text")
STREAM_INTERVAL_MS = TensorSpec(
    "stream_interval_ms",
    "INT32",
    low=0,
    high=MAX_STREAM_INTERVAL_MS,
    doc="with stream: under load, tokens gather for so long at most (default: as the model is served); 0: not at all",
)
PRIORITY = TensorSpec(
    "priority",
    "INT32",
    low=-1,
    high=1,
    doc="-1: while requests wait for the engine, as if it had come 10 s earlier; 1: later; 0 (default): as it came",
)
CANCEL_KEY = TensorSpec(
    "cancel_key", "BYTES", doc="an unguessable name, no other request's, by which the engine's `control` can cancel"
)
DELIVERY_KEY = TensorSpec(
    "delivery_key",
    "BYTES",
    doc="of the sender's own open stream of deliveries: the text comes there, and this request is not answered",
)
DELIVERY_NUMBER = TensorSpec("delivery_number", "INT64", doc="with delivery_key: what it is called there")
RETURN_NUM_INPUT_TOKENS = TensorSpec("return_num_input_tokens", "BOOL", doc="accepted: the last response has it anyway")
RETURN_NUM_OUTPUT_TOKENS = TensorSpec("return_num_output_tokens", "BOOL", doc="accepted, likewise")
PAD_ID = TensorSpec("pad_id", "INT32", doc="accepted: nothing is padded")

# Declared for NVIDIA's clients; only the values that change nothing are accepted.
NUM_RETURN_SEQUENCES = TensorSpec("num_return_sequences", "INT32", neutral=(1,))
END_ID = TensorSpec(
    "end_id", "INT32", neutral=(-1,), doc="the model's own end tokens end it, unless ignore_eos is true"
)
LENGTH_PENALTY = TensorSpec("length_penalty", "FP32", neutral=(0.0, 1.0))
BEAM_WIDTH = TensorSpec("beam_width", "INT32", neutral=(1,))
RETURN_CONTEXT_LOGITS = TensorSpec("return_context_logits", "BOOL", neutral=(False,))
RETURN_GENERATION_LOGITS = TensorSpec("return_generation_logits", "BOOL", neutral=(False,))
EMBEDDING_BIAS_WORDS = TensorSpec("embedding_bias_words", "BYTES", (-1,), neutral=(b"",))
EMBEDDING_BIAS_WEIGHTS = TensorSpec("embedding_bias_weights", "FP32", (-1,), neutral=(0.0,))
LORA_TASK_ID = TensorSpec("lora_task_id", "UINT64", neutral=(0,), doc="use lora_name")

HONOURED_INPUTS = (
    TEXT_INPUT,
    MESSAGES,
    INPUT_IDS,
    SUFFIX,
    TOOLS,
    TOOL_CHOICE,
    PARALLEL_TOOL_CALLS,
    CHAT_TEMPLATE_KWARGS,
    ADD_GENERATION_PROMPT,
    CONTINUE_FINAL_MESSAGE,
    IMAGES,
    CONTEXT_LENGTH_EXCEEDED_BEHAVIOR,
    LORA_NAME,
    MAX_TOKENS,
    MIN_TOKENS,
    STOP_WORDS,
    BAD_WORDS,
    STOP_TOKEN_IDS,
    INCLUDE_STOP_STR_IN_OUTPUT,
    IGNORE_EOS,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    LOGIT_BIAS_TOKEN_IDS,
    LOGIT_BIAS_VALUES,
    MIROSTAT_TARGET,
    MIROSTAT_LR,
    SEED,
    GUIDED_DECODING_GUIDE_TYPE,
    GUIDED_DECODING_GUIDE,
    GUIDED_DECODING_STRICT,
    SENDER,
    EXCLUDE_INPUT_IN_OUTPUT,
    RETURN_LOG_PROBS,
    TOP_LOGPROBS,
    RETURN_TOKEN_IDS,
    RETURN_USAGE,
    RETURN_PERF_METRICS,
    STREAM,
    STREAM_INTERVAL_MS,
    PRIORITY,
    CANCEL_KEY,
    DELIVERY_KEY,
    DELIVERY_NUMBER,
    RETURN_NUM_INPUT_TOKENS,
    RETURN_NUM_OUTPUT_TOKENS,
    PAD_ID,
)
NEUTRAL_INPUTS = (
    NUM_RETURN_SEQUENCES,
    END_ID,
    LENGTH_PENALTY,
    BEAM_WIDTH,
    RETURN_CONTEXT_LOGITS,
    RETURN_GENERATION_LOGITS,
    EMBEDDING_BIAS_WORDS,
    EMBEDDING_BIAS_WEIGHTS,
    LORA_TASK_ID,
)
PUBLIC_INPUTS = HONOURED_INPUTS + NEUTRAL_INPUTS

# --- the ensemble's public outputs, all of which the detokenizer stage writes ---------------------------------------
TEXT_OUTPUT = TensorSpec("text_output", "BYTES", (-1,), doc="the text since the last response")
TOKEN_IDS = TensorSpec("token_ids", "INT32", (-1,), doc="of the text, with return_token_ids or return_log_probs")
INPUT_TOKEN_IDS = TensorSpec("input_token_ids", "INT32", (-1,), doc="first response, with return_token_ids: the prompt")
TOKEN_BYTES = TensorSpec(
    "token_bytes", "BYTES", (-1,), doc="with return_log_probs: what each of these tokens adds to the text"
)
OUTPUT_LOG_PROBS = TensorSpec(
    "output_log_probs", "FP32", (-1,), doc="with return_log_probs: of each, raw; NaN for an echoed prompt's first token"
)
TOP_LOGPROB_TOKEN_IDS = TensorSpec(
    "top_logprob_token_ids",
    "INT32",
    (-1,),
    doc="with top_logprobs: so many for each token, most likely first; -1: none",
)
TOP_LOGPROB_TOKEN_BYTES = TensorSpec("top_logprob_token_bytes", "BYTES", (-1,), doc="likewise, their bytes")
TOP_LOGPROB_VALUES = TensorSpec("top_logprob_values", "FP32", (-1,), doc="likewise, their log probabilities")
NUM_ECHOED_TOKENS = TensorSpec("num_echoed_tokens", "INT32", doc="how many of this response's tokens are the prompt's")
FINISH_REASON = TensorSpec("finish_reason", "BYTES", doc="last response only: `stop` or `length`")
STOP_REASON = TensorSpec(
    "stop_reason",
    "BYTES",
    doc="last response only: the stop word (JSON string) or token id (JSON number) that ended it",
)
NUM_INPUT_TOKENS = TensorSpec("num_input_tokens", "INT32", doc="last response; with return_usage every one")
NUM_OUTPUT_TOKENS = TensorSpec("num_output_tokens", "INT32", doc="likewise")
NUM_CACHED_TOKENS = TensorSpec("num_cached_tokens", "INT32", doc="likewise: input tokens that were reused")
CUM_LOG_PROBS = TensorSpec(
    "cum_log_probs", "FP32", doc="last response, with return_log_probs: the sum over the completion's text"
)
_CLOCK = "last response, with return_perf_metrics: nanoseconds of the monotonic clock of the engine's machine"
ARRIVAL_TIME_NS = TensorSpec("arrival_time_ns", "INT64", doc=f"{_CLOCK}, when it came to the engine")
FIRST_SCHEDULED_TIME_NS = TensorSpec("first_scheduled_time_ns", "INT64", doc="likewise, when it left the queue")
FIRST_TOKEN_TIME_NS = TensorSpec("first_token_time_ns", "INT64", doc="likewise, when its first token was drawn")
LAST_TOKEN_TIME_NS = TensorSpec("last_token_time_ns", "INT64", doc="likewise, its last")
PUBLIC_OUTPUTS = (
    TEXT_OUTPUT,
    TOKEN_IDS,
    INPUT_TOKEN_IDS,
    TOKEN_BYTES,
    OUTPUT_LOG_PROBS,
    TOP_LOGPROB_TOKEN_IDS,
    TOP_LOGPROB_TOKEN_BYTES,
    TOP_LOGPROB_VALUES,
    NUM_ECHOED_TOKENS,
    FINISH_REASON,
    STOP_REASON,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    NUM_CACHED_TOKENS,
    CUM_LOG_PROBS,
    ARRIVAL_TIME_NS,
    FIRST_SCHEDULED_TIME_NS,
    FIRST_TOKEN_TIME_NS,
    LAST_TOKEN_TIME_NS,
)

# --- between the stages ---------------------------------------------------------------------------------------------
# A response's cost grows with its number of tensors (about 25 us each), so what always travels together is packed.
PROMPT_TOKEN_IDS = TensorSpec("prompt_token_ids", "INT32", (-1,), doc="tokenizer to engine")
ENGINE_PARAMS = TensorSpec("engine_params", "BYTES", doc="tokenizer to engine: JSON of the rest of an EngineRequest")
CONTROL_MESSAGES = (
    '`{}`, `{"cancel_key": str}`, `{"fail": "running"}`, `{"fail": "streams"}`, `{"drain": bool}`, '
    '`{"load_adapter": str, "source": str}` or `{"unload_adapter": str}`'
)
CONTROL = TensorSpec("control", "BYTES", doc=f"engine: JSON, {CONTROL_MESSAGES}")
# Environment variable with Triton's key. All messages but the first two also need `"key": str`, where Triton has a key.
KEY_VARIABLE = "CONCH_TRITON_KEY"
STATS = TensorSpec("stats", "BYTES", doc="engine: JSON of EngineStats, the answer to every `control`")
RELEASE = TensorSpec("release", "INT64", (-1,), doc="engine to detokenizer: a packed Release")
RELEASE_DETAILS = TensorSpec("release_details", "BYTES", doc="likewise: JSON of what few requests ask for")
OPEN_DELIVERIES = TensorSpec(
    "open_deliveries",
    "BYTES",
    doc="the key of a new stream of deliveries: unguessable, since who knows it can write to it",
)
DELIVERY = TensorSpec("delivery", "INT64", (-1,), doc="engine to detokenizer: a packed Delivery")
DELIVERY_DETAILS = TensorSpec("delivery_details", "BYTES", doc="likewise: JSON of what few of its items have")
DELIVERED = TensorSpec(
    "delivered", "INT64", (-1,), doc="its serial number, from 0 without a gap, then the number of each item"
)
DELIVERED_TEXTS = TensorSpec("delivered_texts", "BYTES", (-1,), doc="the text of each")
DELIVERED_DETAILS = TensorSpec(
    "delivered_details", "BYTES", doc="JSON object: what else there is of an item, by its index; a text: its error"
)
TOKENIZE = TensorSpec("tokenize", "BYTES", doc="tokenizer: JSON of a TokenizeOptions; only tokenize the prompt")
TOKEN_STRINGS = TensorSpec(
    "token_strings", "BYTES", (-1,), doc="tokenizer: each prompt token in the vocabulary's own form"
)


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The inputs and outputs of one stage's Triton model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_decoupled: bool = False  # may answer a request any number of times, also not at all
    max_batch_size: int = 1  # more: Triton hands over so many requests at a time, if they wait; each is still one


# What the two ensembles of a model map of each stage: that of requests, and that of one reader of many.
STEPS = {
    "tokenizer": StageSpec(PUBLIC_INPUTS, (PROMPT_TOKEN_IDS, ENGINE_PARAMS)),
    "engine": StageSpec((PROMPT_TOKEN_IDS, ENGINE_PARAMS), (RELEASE, RELEASE_DETAILS)),
    "detokenizer": StageSpec((RELEASE, RELEASE_DETAILS), PUBLIC_OUTPUTS),
}
DELIVERIES = "deliveries"  # the second ensemble's name, as of a stage
DELIVERY_STEPS = {
    "engine": StageSpec((OPEN_DELIVERIES,), (DELIVERY, DELIVERY_DETAILS)),
    "detokenizer": StageSpec((DELIVERY, DELIVERY_DETAILS), (DELIVERED, DELIVERED_TEXTS, DELIVERED_DETAILS)),
}
# What each stage takes and gives: also a little to those who call it directly.
STAGES = {
    "tokenizer": StageSpec(
        (*PUBLIC_INPUTS, TOKENIZE), (*STEPS["tokenizer"].outputs, TOKEN_STRINGS), max_batch_size=MAX_TOKENIZER_BATCH
    ),
    "engine": StageSpec(
        (*STEPS["engine"].inputs, OPEN_DELIVERIES, CONTROL),
        (*STEPS["engine"].outputs, *DELIVERY_STEPS["engine"].outputs, STATS),
        is_decoupled=True,
    ),
    # Decoupled so that a probe can go unanswered: a client would see even an empty response.
    "detokenizer": StageSpec(
        (*STEPS["detokenizer"].inputs, *DELIVERY_STEPS["detokenizer"].inputs),
        (*PUBLIC_OUTPUTS, *DELIVERY_STEPS["detokenizer"].outputs),
        is_decoupled=True,
    ),
}


_MODEL_ID = re.compile(r"[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?)*", re.ASCII)


def model_id_to_slug(model_id: str) -> str:
    """Return the name of a model's ensemble: a Triton name is a folder, so `/` becomes `--`.

    Raises:
        ValueError: the id holds something that would not come back unchanged.
    """
    if not _MODEL_ID.fullmatch(model_id) or "--" in model_id or "__" in model_id:
        rule = "letters, digits and `. : _ -` between them, parts separated by `/`; neither `--` nor `__`"
        raise ValueError(f"model id {model_id!r}: {rule}")
    return model_id.replace("/", "--")


def slug_to_model_id(slug: str) -> str:
    """Return the OpenAI model id of an ensemble's name."""
    return slug.replace("--", "/")


def stage_name(slug: str, stage: str) -> str:
    """Return the Triton name of one stage of an ensemble."""
    return f"{slug}__{stage}"


def slug_of_stage(stage: str) -> str:
    """Return the ensemble's name of a stage's Triton name; an ensemble's own name comes back unchanged."""
    return stage.partition("__")[0]
