"""The fields that chat completions and completions share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.answers import ServiceTier
from frontend.protocol.body import Body, ModelBody, Refused, broken_rule, declared, optional, value_by_two_names
from frontend.protocol.priority import Priority
from frontend.protocol.prompt_cache import CacheBreakpoint, PromptCacheOptions, Retention, kept_s
from frontend.protocol.response_format import ResponseFormat, StructuredOutputs
from model_repository.contract.request import MAX_BAD_WORD_CHARS, MAX_BAD_WORDS, MAX_STOP_WORDS, MAX_TOKEN_IDS
from model_repository.contract.spec import MAX_INT32
from model_repository.contract.tensors import INPUTS
from model_repository.quantities import DURATION_RULE, seconds_of

# --- known fields without support ------------------------------------------------------------------------------------
REFUSED: dict[str, Refused] = {
    "modalities": Refused(["text"]),
    "audio": Refused(),
    "web_search_options": Refused(),
    "moderation": Refused(),
    "chat_template": Refused(),
    "use_beam_search": Refused(False),
    "length_penalty": Refused(1),
    "truncation_side": Refused("left"),
    "skip_special_tokens": Refused(True),
    "spaces_between_special_tokens": Refused(True),
    "guided_json": Refused(instead="structured_outputs.json"),
    "guided_regex": Refused(instead="structured_outputs.regex"),
    "guided_choice": Refused(instead="structured_outputs.choice"),
    "guided_grammar": Refused(instead="structured_outputs.grammar"),
    "grammar": Refused("", instead="structured_outputs.grammar"),
    "json_schema": Refused(instead="response_format"),
    "format": Refused("", instead="response_format"),
    "structural_tag": Refused(instead="tools"),
    "n_predict": Refused(-1, instead="max_tokens"),
    "max_new_tokens": Refused(instead="max_tokens"),
    "min_new_tokens": Refused(0, instead="min_tokens"),
    "stop_sequences": Refused([], instead="stop"),
    "no_stop_trim": Refused(False, instead="include_stop_str_in_output"),
    "n_probs": Refused(0, instead="logprobs"),
    "repeat_penalty": Refused(1, instead="repetition_penalty"),
    "typical_p": Refused(1, instead="top_p"),
    "tfs_z": Refused(1, instead="top_p"),
    "top_a": Refused(0, instead="min_p"),
    "dynatemp_range": Refused(0, instead="temperature"),
    "dry_multiplier": Refused(0, instead="repetition_penalty"),
    "xtc_probability": Refused(0, instead="temperature"),
}

HINTS: dict[str, tuple[Any, ...]] = {"verbosity": ("medium",), "prediction": ()}

_MAX_BIASES = 1024


class StreamOptions(Body):
    """Additions to a stream."""

    include_usage: bool | None = None  # one more event at the end, with the token counts
    continuous_usage_stats: bool | None = None  # every event has the counts so far
    include_obfuscation: bool | None = None  # pad each event: its size then says little about the text
    include_timing: bool | None = None  # the last event has the milliseconds of each phase


def as_list(value: Any) -> Any:
    """Return a list with the text. Other values stay as they are."""
    return [value] if isinstance(value, str) else value


def _exact_int(value: Any) -> Any:
    """Refuse true, false and 2.0: to a literal, Python's values equal integers."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


def _seconds(value: Any) -> Any:
    """Return the seconds of a duration; inf: never."""
    if value is None:
        return None
    try:
        return seconds_of(value)
    except ValueError as exc:
        raise PydanticCustomError("duration", "Input should be {rule}", {"rule": DURATION_RULE}) from exc


def _not_too_many_biases(value: Any) -> Any:
    """Refuse a long object at once: pydantic counts members only after it has checked them all."""
    if isinstance(value, dict) and len(value) > _MAX_BIASES:
        raise PydanticCustomError("too_long", f"Dictionary should have at most {_MAX_BIASES} items, not {len(value)}")
    return value


TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]


_StopText = Annotated[str, Field(min_length=1)]
type StopInput = _StopText | Annotated[list[_StopText], Field(max_length=MAX_STOP_WORDS)]


_BIAS = INPUTS["logit_bias_values"]


class QueuedBody(ModelBody):
    """The fields of requests that wait for the model. `examples` hold values that have an effect."""

    service_tier: Literal["auto", "default", "flex", "priority"] | None = optional(
        "flex", "flex waits longer, priority shorter; the answer repeats it"
    )
    priority: int | None = optional(
        1, "vLLM's form of service_tier: below 0 is priority, above 0 is flex", ge=-MAX_INT32, le=MAX_INT32
    )
    keep_alive: Annotated[float | None, BeforeValidator(_seconds, json_schema_input_type=float | str | None)] = (
        optional("10m", "Ollama's: the model is unloaded after this time without use; of a key that may decide it")
    )
    ttl: float | None = optional(600, "LM Studio's form of keep_alive, in seconds", gt=0, le=MAX_INT32)
    user: str | None = optional("u-1", "bookkeeping")

    @property
    def keep_alive_s(self) -> float | None:
        """Seconds until the model is unloaded without further use; inf: never; None: the model decides."""
        return self.ttl if self.keep_alive is None else self.keep_alive

    @model_validator(mode="after")
    def _check_priority(self) -> Self:
        if self.priority and self.service_tier not in (None, "auto", self.tier()):
            raise broken_rule("priority", f"means service_tier {self.tier()}, but {self.service_tier} is given")
        return self

    def urgency(self) -> Priority:
        """Return the priority in the model's queue."""
        return {"priority": Priority.HIGH, "flex": Priority.LOW}.get(self.tier() or "", Priority.NORMAL)

    def tier(self) -> ServiceTier | None:
        """Return OpenAI's name of the priority; None: the request has no priority."""
        if self.priority:
            return "priority" if self.priority < 0 else "flex"
        if self.service_tier is None and self.priority is None:
            return None
        return self.service_tier if self.service_tier in ("flex", "priority") else "default"


class GenerationBody(QueuedBody):
    """The fields of both endpoints. `examples` hold values that change the answer: the parameter table tries them."""

    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = HINTS

    # The end of the completion.
    max_completion_tokens: int | None = optional(3, "wins over max_tokens", ge=1, le=MAX_INT32)
    min_tokens: int | None = declared("min_tokens", 8)
    stop: Annotated[
        list[_StopText] | None,
        Field(max_length=MAX_STOP_WORDS),
        BeforeValidator(as_list, json_schema_input_type=StopInput | None),
    ] = optional(["\n"], f"up to {MAX_STOP_WORDS} texts that end the completion; left out of it")
    bad_words: list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]] | None = optional(
        ["5"], "texts that the completion must not contain, in any tokens", max_length=MAX_BAD_WORDS
    )
    allowed_token_ids: list[TokenId] | None = declared(
        "allowed_token_ids", [11], min_length=1, max_length=MAX_TOKEN_IDS
    )
    stop_token_ids: list[TokenId] | None = declared("stop_token_ids", [11], max_length=64)
    include_stop_str_in_output: bool | None = optional(True, "keep the stop text that ended the completion")
    ignore_eos: bool | None = optional(True, "the model's end tokens do not end the completion: it runs to max_tokens")
    context_length_exceeded_behavior: Literal["truncate", "error"] | None = optional(
        "error", "truncate: max_tokens is lowered to the rest of the context window; error: 400"
    )
    truncate_prompt_tokens: int | None = declared("truncate_prompt_tokens", 3)
    # Sampling.
    temperature: float | None = declared("temperature", 0, "0 is greedy")
    top_p: float | None = declared("top_p", 0.5)
    top_k: int | None = declared("top_k", 1)
    min_p: float | None = declared("min_p", 0.5)
    seed: int | None = optional(
        7, "the same seed and request give the same text; choice i draws with seed + i", ge=-(2**63), le=2**63 - 1
    )
    repetition_penalty: float | None = declared("repetition_penalty", 1.5)
    presence_penalty: float | None = declared("presence_penalty", 2)
    frequency_penalty: float | None = declared("frequency_penalty", 2)
    logit_bias: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")],
            Annotated[float, Field(ge=_BIAS.low, le=_BIAS.high)],
        ]
        | None,
        Field(max_length=_MAX_BIASES),
        BeforeValidator(_not_too_many_biases),
    ] = optional({"11": -100}, "additions to logits, by token id as text; -100 bans, 100 forces")
    mirostat_target: float | None = declared("mirostat_target", 1.5)
    mirostat_lr: float | None = declared("mirostat_lr", 0.2)
    mirostat: Annotated[Literal[0, 2] | None, BeforeValidator(_exact_int)] = optional(
        2, "llama.cpp's switch: 2 is on, 0 is off"
    )
    mirostat_tau: float | None = declared("mirostat_target", 1.5, "mirostat_target by llama.cpp's name")
    mirostat_eta: float | None = declared("mirostat_lr", 0.2, "mirostat_lr by llama.cpp's name")
    # The form of the answer.
    n: int | None = optional(2, "choices for each prompt", ge=1, le=128)
    response_format: ResponseFormat | None = optional(
        {"type": "json_object"}, "the form of the whole answer, enforced by constrained decoding"
    )
    structured_outputs: StructuredOutputs | None = optional({"choice": ["a", "b"]}, "response_format by vLLM's names")
    regex: str | None = optional("[0-9]+", "structured_outputs.regex by SGLang's name")
    ebnf: str | None = optional('root ::= "a"', "structured_outputs.grammar by SGLang's name")
    prompt_logprobs: int | None = declared(
        "top_logprobs", 2, "log probabilities of the prompt's tokens and of this number of likeliest ones, as in vLLM"
    )
    return_token_ids: bool | None = optional(True, "choices have their token ids and the prompt's, as in vLLM")
    return_tokens_as_token_ids: bool | None = optional(True, "log probabilities name tokens by id, as token_id:123")
    stream: bool | None = optional(True, "send the answer in pieces as server-sent events")
    stream_options: StreamOptions | None = optional(
        {"include_usage": True},
        "include_usage: a last event with the token counts; continuous_usage_stats: each event has "
        "the counts so far; include_timing: the last event has the milliseconds of each phase; "
        "include_obfuscation: padding",
        needs={"stream": True},
    )
    stream_interval_ms: int | None = declared("stream_interval_ms", 0, needs={"stream": True})
    # Bookkeeping: for the log only.
    metadata: dict[str, Any] | None = optional({"run": "1"}, "bookkeeping")
    safety_identifier: str | None = optional("u-1", "bookkeeping")
    prompt_cache_key: str | None = optional(
        "u-1", "bookkeeping; requests with the same one go to one replica if they can"
    )
    prompt_cache_options: PromptCacheOptions | None = optional(
        {"ttl": "30m"},
        "ttl: the prompt's tokens stay in the KV cache for this time (such as 30m; at most 24h), up to the sender's "
        'share; mode: "explicit" keeps only prompts with a prompt_cache_breakpoint',
    )
    prompt_cache_retention: Retention | None = optional("24h", "24h: the same, for a day")

    def cache_breakpoints(self) -> Iterator[CacheBreakpoint]:
        """Yield the marks in the prompt."""
        yield from ()

    @property
    def keep_s(self) -> float:
        """See `kept_s`."""
        return kept_s(self.prompt_cache_options, self.prompt_cache_retention, self.cache_breakpoints())

    @model_validator(mode="after")
    def _check_shared_fields(self) -> Self:
        is_text = self.response_format is None or self.response_format.type == "text"
        forms = [] if is_text else ["response_format"]
        forms += [name for name in ("structured_outputs", "regex", "ebnf") if getattr(self, name) is not None]
        if len(forms) > 1:
            raise broken_rule(forms[1], f"excludes {forms[0]}")
        for ours, llama_cpp in (("mirostat_target", "mirostat_tau"), ("mirostat_lr", "mirostat_eta")):
            if value_by_two_names(self, ours, llama_cpp) is not None and self.mirostat == 0:
                raise broken_rule("mirostat", f"0 switches Mirostat off, but {ours} is set")
        for name in ("stream_options", "stream_interval_ms"):
            if getattr(self, name) is not None and not self.stream:
                raise broken_rule(name, f"`{name}` can only be used when `stream` is True")
        if self.prompt_logprobs is not None and self.stream:
            raise broken_rule("prompt_logprobs", "`prompt_logprobs` can only be used when `stream` is False")
        return self
