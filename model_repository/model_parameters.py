"""A model's description in its ensemble's configuration: rendered at build time, read by the frontend."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from model_repository.capabilities import Capability
from model_repository.contract.request import ContextOverflow, SamplingParams
from model_repository.contract.spec import MAX_INT32, TensorSpec, specs_of

# Fields of messages with the reasoning of an earlier turn, which only some chat templates read.
REASONING_FIELDS = ("reasoning_content", "reasoning")

_API = SamplingParams()  # the defaults of the API document


class ModelDefaults(TypedDict, total=False):
    """A model's own request defaults. For an absent key the frontend's setting holds."""

    completion_max_tokens: int | None
    chat_max_tokens: int | None
    context_length_exceeded_behavior: ContextOverflow
    include_stop_str_in_output: bool
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


# Its values for the sampling fields that can have a default.
API_SAMPLING: dict[str, float] = {
    name: getattr(_API, name) for name in ModelDefaults.__annotations__ if hasattr(_API, name)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """The values of absent request fields."""

    completion_max_tokens: int | None  # None: the rest of the context window
    chat_max_tokens: int | None  # None: the rest of the context window
    context_length_exceeded_behavior: ContextOverflow
    include_stop_str_in_output: bool
    temperature: float = _API.temperature
    top_p: float = _API.top_p
    top_k: int = _API.top_k
    min_p: float = _API.min_p
    repetition_penalty: float = _API.repetition_penalty
    presence_penalty: float = _API.presence_penalty
    frequency_penalty: float = _API.frequency_penalty

    def overridden_by(self, defaults: ModelDefaults) -> RequestDefaults:
        """Return these defaults with a model's own in their place."""
        return dataclasses.replace(self, **defaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """A served model, as its ensemble describes it."""

    model_id: str
    context_window: int  # tokens of prompt and completion together
    max_sequences: int  # decoded by one replica at a time
    created: int  # unix seconds
    owned_by: str
    runtime: str
    fingerprint: str  # changes whenever the same request could get a different answer
    aliases: tuple[str, ...]  # further names of the model, of printable characters
    adapters: tuple[str, ...]  # names of its LoRA adapters
    capabilities: frozenset[Capability]
    tool_call_format: str
    reasoning_format: str  # a name in `reasoning_formats`; empty: the model does not think
    template_fields: tuple[str, ...]  # variables, REASONING_FIELDS and `name` of messages that its chat template reads
    defaults: ModelDefaults

    def request_defaults(self, of_server: RequestDefaults) -> RequestDefaults:
        """Return the server's defaults with the model's own in their place.

        The chats of a model that thinks have the rest of the window, since the server's limit would cut the thinking.
        """
        if self.reasoning_format:
            of_server = dataclasses.replace(of_server, chat_max_tokens=None)
        return of_server.overridden_by(self.defaults)

    def to_parameters(self) -> dict[str, str]:
        """Return the parameters of config.pbtxt: plain texts, and JSON for other values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["capabilities"] = sorted(self.capabilities)
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ModelParameters | None:
        """Read the parameters; None if the ensemble is not ours. Additions of later versions are ignored."""
        try:
            defaults = _read(parameters["defaults"], dict)
            return cls(
                model_id=parameters["model_id"],
                context_window=int(parameters["context_window"]),
                max_sequences=int(parameters["max_sequences"]),
                created=int(parameters["created"]),
                owned_by=parameters["owned_by"],
                runtime=parameters["runtime"],
                fingerprint=parameters["fingerprint"],
                aliases=_read_texts(parameters["aliases"]),
                adapters=_read_texts(parameters["adapters"]),
                capabilities=_read_capabilities(parameters["capabilities"]),
                tool_call_format=parameters["tool_call_format"],
                reasoning_format=parameters["reasoning_format"],
                template_fields=_read_texts(parameters["template_fields"]),
                defaults=checked_defaults({name: defaults[name] for name in defaults if name in _DEFAULTS}),
            )
        except (KeyError, ValueError):
            return None


def checked_defaults(values: Mapping[str, object]) -> ModelDefaults:
    """Check request defaults, given by name; `sampling: openai` stands for API_SAMPLING.

    Raises:
        ValueError: names the default, its value and the rule.
    """
    defaults: dict[str, object] = {}
    for name, value in values.items():
        if name not in _DEFAULTS:
            raise ValueError(f"{name}: expected one of {', '.join(_DEFAULTS)}")
        read, rule = _DEFAULTS[name]
        try:
            defaults[name] = read(value)
        except ValueError as exc:
            raise ValueError(f"{name}={json.dumps(value)}: must be {rule}") from exc
    if defaults.pop("sampling", None) is not None:
        defaults = API_SAMPLING | defaults
    return cast(ModelDefaults, defaults)


def _read[T](text: str, kind: type[T]) -> T:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(f"{text}: expected a JSON {kind.__name__}")
    return value


def _read_texts(text: str) -> tuple[str, ...]:
    values = _read(text, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{text}: expected a JSON list of texts")
    return tuple(values)


def _read_capabilities(text: str) -> frozenset[Capability]:
    return frozenset(Capability(word) for word in _read_texts(text) if word in Capability)


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_INT32:
        raise ValueError(value)
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _sampling_rule(spec: TensorSpec) -> tuple[Callable[[Any], object], str]:
    """Return the reader and the rule of a sampling field, by the declaration of its tensor."""
    is_whole, low = spec.datatype == "INT32", spec.low or 0
    high = MAX_INT32 if spec.high is None else spec.high

    def read(value: Any) -> float:
        is_number = type(value) is int or (type(value) is float and not is_whole)
        if not is_number or not low <= value <= high or (spec.is_low_open and value == low):
            raise ValueError(value)
        return cast(float, value)

    return read, f"a {'whole ' * is_whole}number, {'above' if spec.is_low_open else 'at least'} {low}, at most {high}"


_MAX_TOKENS_RULE = f"a whole number from 1 to {MAX_INT32}, or null: the rest of the context window"
_DEFAULTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "completion_max_tokens": (_max_tokens, _MAX_TOKENS_RULE),
    "chat_max_tokens": (_max_tokens, _MAX_TOKENS_RULE),
    "context_length_exceeded_behavior": (ContextOverflow, " or ".join(ContextOverflow)),
    "include_stop_str_in_output": (_boolean, "true or false"),
    **{spec.name: _sampling_rule(spec) for spec in specs_of(SamplingParams) if spec.name in API_SAMPLING},
    "sampling": (("openai",).index, "openai"),
}
