"""What the stages say to each other: one type per hop, with its packed form."""

from __future__ import annotations

import builtins
import dataclasses
import json
from collections import abc
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from model_repository.contract import ENGINE_PARAMS, TOKENIZE
from model_repository.errors import InvalidRequest
from model_repository.generation import FinishReason, Guide, GuideKind, Mirostat, SamplingParams, Timing, Usage

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def _bytes_to_json(items: tuple[bytes, ...]) -> list[str]:
    return [item.decode("latin-1") for item in items]


def _bytes_from_json(items: list[str]) -> tuple[bytes, ...]:
    return tuple(item.encode("latin-1") for item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Tokenizer to engine: a prompt that fits the context window, and everything that shapes its completion."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int  # prompt and completion together fit the context window; 0: only the prompt is computed
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()  # of this request, beside the model's own and just like them
    bad_words: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    echo: tuple[bytes, ...] = ()  # what each prompt token stands for in the echoed text; empty: no echo
    num_logprobs: int | None = None
    has_token_ids: bool = False
    has_usage: bool = False
    has_timing: bool = False
    guide: Guide | None = None
    sender: str = ""  # of the request; guides of one sender share their limits
    lora_name: str = ""
    is_stream: bool = False
    priority: int = 0  # -1, 0 or 1; lower is earlier, while it waits
    cancel_key: str = ""
    delivery_key: str = ""  # of the stream of deliveries to which its releases go; empty: they answer the request
    delivery_number: int = 0  # its reader's own name for it
    stream_interval_ms: int | None = None  # for so long its tokens may gather; None: as long as the engine lets them

    def params_json(self) -> bytes:
        """Return everything but the prompt, for the `engine_params` tensor: only what differs from the defaults."""
        fields = {name: value for name, default in _PARAMS.items() if (value := getattr(self, name)) != default}
        fields["sampling"] = _sampling_to_json(self.sampling)
        if self.echo:
            fields["echo"] = _bytes_to_json(self.echo)
        if self.guide is not None:
            fields["guide"] = [self.guide.kind, self.guide.content, self.guide.num_bytes]
        return json.dumps(fields).encode()

    @classmethod
    def from_tensors(cls, prompt_token_ids: Int32s, params_json: bytes) -> EngineRequest:
        """Rebuild the request from the two tensors that carry it.

        Raises:
            InvalidRequest: `params_json` is not what `params_json()` returns: anybody may call the engine stage.
        """
        try:
            params: dict[str, Any] = json.loads(params_json)
            params["sampling"] = _sampling_from_json(params["sampling"])
            for name in ("stop", "stop_token_ids", "end_token_ids", "bad_words"):
                params[name] = tuple(params.get(name, ()))
            params["echo"] = _bytes_from_json(params.get("echo", []))
            if "guide" in params:
                kind, content, num_bytes = params["guide"]
                params["guide"] = _typed(Guide, {"kind": GuideKind(kind), "content": content, "num_bytes": num_bytes})
            request = _typed(cls, params, prompt_token_ids=tuple(prompt_token_ids.tolist()))
            if not all(request.stop):
                raise ValueError("stop: a text is empty")
            if not (0 <= request.sampling.seed < 2**64 and -(2**63) <= request.delivery_number < 2**63):
                raise ValueError("seed or delivery_number: more than 64 bits")
            return request
        except (ValueError, TypeError, LookupError, AttributeError) as exc:
            raise InvalidRequest(f"not the JSON of an engine request ({exc})", ENGINE_PARAMS.name) from exc


# Name and default: to ask dataclasses anew for each request takes longer than to write it.
_PARAMS = {field.name: field.default for field in dataclasses.fields(EngineRequest) if field.name != "prompt_token_ids"}
_NEUTRAL_SAMPLING = SamplingParams()
_SAMPLING_DEFAULTS = {
    field.name: getattr(_NEUTRAL_SAMPLING, field.name) for field in dataclasses.fields(SamplingParams)
}


def _sampling_to_json(sampling: SamplingParams) -> dict[str, Any]:
    fields = {
        name: value for name, default in _SAMPLING_DEFAULTS.items() if (value := getattr(sampling, name)) != default
    }
    if sampling.logit_bias:
        fields["logit_bias"] = list(sampling.logit_bias.items())
    if sampling.mirostat is not None:
        fields["mirostat"] = dataclasses.asdict(sampling.mirostat)
    return fields


def _sampling_from_json(fields: dict[str, Any]) -> SamplingParams:
    if "logit_bias" in fields:
        fields["logit_bias"] = dict(fields["logit_bias"])
    if "mirostat" in fields:
        fields["mirostat"] = _typed(Mirostat, fields["mirostat"])
    return _typed(SamplingParams, fields)


def _typed[Message](kind: type[Message], fields: abc.Mapping[str, Any], **trusted: Any) -> Message:
    """Build a dataclass.

    Raises:
        TypeError: a field is not of its annotated type: in the engine it would end the requests of others too.
    """
    hints = _HINTS[kind]
    for name, value in fields.items():
        if name in hints and not _is_of(value, hints[name]):
            raise TypeError(f"{name}: expected {hints[name]}")
    return kind(**fields, **trusted)


def _is_of(value: Any, hint: Any) -> bool:
    if type(value) is hint or (hint is float and type(value) is int):  # a bool is no int
        return True
    if isinstance(hint, UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    match get_origin(hint), get_args(hint):
        case builtins.tuple, (item, _):
            return isinstance(value, tuple) and all(_is_of(each, item) for each in value)
        case abc.Mapping, (key, item):
            return isinstance(value, dict) and all(_is_of(k, key) and _is_of(v, item) for k, v in value.items())
    return False


_HINTS: dict[Any, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (EngineRequest, SamplingParams, Mirostat, Guide)
}


@dataclass(frozen=True, slots=True)
class DrawnLogprob:
    """The log probability of a token in the model's raw distribution, and the most likely ones in its place."""

    logprob: float | None  # None: the first token of a prompt
    top: tuple[tuple[int, float], ...] = ()  # token id and log probability, most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDetails:
    """What few requests ask for; it travels beside the release only where there is something to say."""

    prompt_token_ids: tuple[int, ...] = ()  # first release only, with echo or has_token_ids
    echo: tuple[bytes, ...] = ()  # first release only, with echo: the bytes of each prompt token
    logprobs: tuple[DrawnLogprob, ...] = ()  # of the echoed tokens, then of the release's
    cum_logprob: float | None = None  # last release only
    has_token_ids: bool = False
    has_special_tokens: bool = False  # a text of its own, with special tokens: only for direct calls of the stage
    stop_reason: str | int | None = None  # last release only
    timing: Timing | None = None  # likewise

    def to_json(self) -> bytes:
        """Return it as the `release_details` tensor's bytes."""
        return json.dumps(self.to_fields()).encode()

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON's values: only what differs from the defaults."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        if self.echo:
            fields["echo"] = _bytes_to_json(self.echo)
        if self.timing is not None:
            fields["timing"] = dataclasses.asdict(self.timing)
        if self.logprobs:
            fields["logprobs"] = [[item.logprob, item.top] for item in self.logprobs]
        return fields

    @classmethod
    def from_json(cls, payload: bytes) -> ReleaseDetails:
        """Rebuild it from the `release_details` tensor's bytes."""
        return cls.from_fields(json.loads(payload))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ReleaseDetails:
        """Rebuild it from JSON's values."""
        fields = dict(fields)
        fields["prompt_token_ids"] = tuple(fields.get("prompt_token_ids", ()))
        fields["echo"] = _bytes_from_json(fields.get("echo", []))
        fields["logprobs"] = tuple(
            DrawnLogprob(logprob, tuple((token_id, value) for token_id, value in top))
            for logprob, top in fields.get("logprobs", ())
        )
        if "timing" in fields:
            fields["timing"] = Timing(**fields["timing"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Engine to detokenizer: tokens whose text is final.

    A release without tokens and without a finish reason is a probe: it asks the detokenizer, the only stage that can
    see it, whether the client is still there.
    """

    sequence: int  # the engine's own number, by which the detokenizer cancels
    token_ids: tuple[int, ...] = ()
    num_cut_bytes: int = 0  # at the end of the last token, not part of the text: a stop sequence, or an end token
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # with finish_reason; else where the request asked for it
    details: ReleaseDetails | None = None

    # Int64 words before the token ids: sequence, cut, finish code, input, output, cached tokens.
    _NUM_HEADER: ClassVar[int] = 6
    _FINISH: ClassVar[tuple[FinishReason | None, ...]] = (None, FinishReason.STOP, FinishReason.LENGTH)

    @property
    def is_probe(self) -> bool:
        """Whether it only asks if the client is still there."""
        return not self.token_ids and self.finish_reason is None and self.details is None

    def to_array(self) -> Int64s:
        """Pack all but the details into int64 [num_header + num_tokens]."""
        return np.array(self.words(), dtype=np.int64)

    def words(self) -> tuple[int, ...]:
        """Return all but the details as numbers, the token ids last."""
        if self.finish_reason is None and self.usage is None:  # almost every one
            return (self.sequence, self.num_cut_bytes, 0, 0, 0, 0, *self.token_ids)
        usage = self.usage or Usage(num_input_tokens=0, num_output_tokens=0)
        return (
            self.sequence,
            self.num_cut_bytes,
            self._FINISH.index(self.finish_reason),
            usage.num_input_tokens,
            usage.num_output_tokens,
            usage.num_cached_tokens,
            *self.token_ids,
        )

    @classmethod
    def from_array(cls, packed: Int64s, details: ReleaseDetails | None = None) -> Release:
        """Unpack what `to_array` made."""
        return cls.from_words(packed.tolist(), details)

    @classmethod
    def from_words(cls, words: list[int], details: ReleaseDetails | None = None) -> Release:
        """Rebuild it from its numbers."""
        sequence, cut, finish, num_input, num_output, num_cached = words[: cls._NUM_HEADER]
        usage = None
        if finish or num_input:
            usage = Usage(num_input_tokens=num_input, num_output_tokens=num_output, num_cached_tokens=num_cached)
        return cls(
            sequence=sequence,
            token_ids=tuple(words[cls._NUM_HEADER :]),
            num_cut_bytes=cut,
            finish_reason=cls._FINISH[finish],
            usage=usage,
            details=details,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """To the tokenizer, by those who call it directly: only tokenize, and how."""

    add_special_tokens: bool = True  # of a text prompt

    @classmethod
    def from_json(cls, fields: Any) -> TokenizeOptions:
        """Rebuild it from the `tokenize` tensor's value.

        Raises:
            InvalidRequest: it is no object of these booleans.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, dict):
            raise InvalidRequest("expected a JSON object", TOKENIZE.name)
        for name, value in fields.items():
            if name not in names or not isinstance(value, bool):
                rule = f"expected true or false under {' or '.join(names)}"
                raise InvalidRequest(f"{json.dumps(name)}: {rule}", TOKENIZE.name)
        return cls(**fields)

    def to_json(self) -> bytes:
        """Return it as the `tokenize` tensor's bytes."""
        return json.dumps(dataclasses.asdict(self)).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's answer to every `control`: what it is doing, and since which load."""

    epoch: int  # a new number at every load: another one means that the engine's sequences are gone
    num_active: int  # sequences with KV cache cells: in prefill or decoding
    num_waiting: int
    num_cells_used: int  # KV cache cells of active sequences
    num_cells: int
    num_steps: int  # since the load
    num_step_tokens: int  # completion tokens drawn in those steps
    max_step_sequences: int  # the most sequences that one step gave a token
    num_finished: int
    num_cancelled: int
    num_streams: int  # of deliveries, that are open: readers of many sequences
    num_deliveries: int  # responses to them, ...
    num_delivered: int  # ... and the releases in them
    last_cancel_to_free_ms: float  # from the cancel's arrival to the release of its cells
    cancel_to_free_ms: float  # of all of them together, since the load
    step_age_ms: float  # how long the step in progress has been running; 0 between steps
    adapters: dict[str, str]  # LoRA adapters by name: from where each was loaded; empty: it is the artifact's own
    adapter_bytes: int  # of all that are in memory
    num_unloading: int  # sequences under way whose adapter is not offered any more
    is_draining: bool = False  # whoever has another replica should ask that one; what comes here is served all the same

    def to_json(self) -> bytes:
        """Return it as the `stats` tensor's bytes."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> EngineStats:
        """Rebuild it from the `stats` tensor's bytes."""
        return cls(**json.loads(payload))
