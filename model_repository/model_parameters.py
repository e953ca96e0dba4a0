"""A model's parameters in config.pbtxt: rendered at build time, read by its stages and the frontend."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict, cast

import msgspec

from model_repository.contract.request import MAX_STOP_WORDS, ContextOverflow, SamplingParams
from model_repository.contract.spec import MAX_INT32, TensorSpec, specs_of
from model_repository.contract.tensors import ENCODER, GENERATOR, Layout, model_id_to_ensemble
from model_repository.engine.runtime import EngineConfig
from model_repository.model_facts import Task
from model_repository.system.command_parser import expected_one_of

PARAMETER = "conch"  # its name in config.pbtxt

# Fields of messages with the reasoning of an earlier turn, which only some chat templates read.
REASONING_FIELDS = ("reasoning_content", "reasoning")
# Another one, of templates only: `thinking` alone is a variable of other templates.
THINKING_FIELD = "message.thinking"

DEFAULT_KEEP_ALIVE_S = 300.0  # of a model that is loaded on demand; the other one stays

_API = SamplingParams()  # the defaults of the API document


class Load(StrEnum):
    """When a model is loaded."""

    START = "start"  # as the server starts
    DEMAND = "demand"  # by the first request


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
    seed: int
    stop: tuple[str, ...]


class Preset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A further name of a model, with a system prompt and request defaults of its own."""

    system: str = ""  # of conversations without one
    defaults: ModelDefaults = {}


# Its values for the sampling fields that can have a default. Its seed is a random one.
API_SAMPLING: dict[str, float] = {
    name: getattr(_API, name) for name in ModelDefaults.__annotations__ if hasattr(_API, name) and name != "seed"
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
    seed: int | None = None  # None: a random one
    stop: tuple[str, ...] = ()


# The labels of a model that judges a pair by its next token: the scores are log probabilities of these tokens.
JUDGEMENTS = ("yes", "no")


class ModelParameters(EngineConfig, frozen=True, kw_only=True):
    """All parameters of a served model: as JSON, the one parameter in config.pbtxt of its ensembles and stages."""

    model_id: str
    replica: int = 1  # its number among the replicas of the model in this repository
    position: int = 0  # of the model in the order in which the user has named those of this repository
    created: int  # unix seconds
    fingerprint: str  # changes whenever the same request could get a different answer
    aliases: tuple[str, ...]  # further names of the model, of printable characters
    presets: Mapping[str, Preset] = {}  # by name, also of printable characters
    capabilities: frozenset[str]  # values of Capability, and words of later versions
    defaults: ModelDefaults
    memory_bytes: int = 0  # that a loaded replica holds, of GPUs if it needs some; 0: unknown
    wanted_layers: str = "auto"  # --gpu-layers, of which `gpu_layers` is the result
    wanted_devices: tuple[str, ...] = ()  # --device
    load: Load = Load.START
    keep_alive_s: float | None = None  # seconds without work until it is unloaded; negative: never; None: by `load`
    is_pinned: bool = False  # it is not unloaded to make room for another model

    @property
    def max_idle_s(self) -> float:
        """Seconds without work after which it is unloaded; math.inf: never."""
        if self.keep_alive_s is None:
            return DEFAULT_KEEP_ALIVE_S if self.load is Load.DEMAND else math.inf
        return math.inf if self.keep_alive_s < 0 else self.keep_alive_s

    def defaults_of(self, preset: Preset | None) -> ModelDefaults:
        """Return the model's own defaults, with those of a preset in their place."""
        return self.defaults if preset is None else self.defaults | preset.defaults

    def request_defaults(self, of_server: RequestDefaults, preset: Preset | None = None) -> RequestDefaults:
        """Return the server's defaults with the model's own in their place, or with those of a preset.

        The chats of a model that thinks have the rest of the window, since the server's limit would cut the thinking.
        """
        own: ModelDefaults = {"chat_max_tokens": None} if self.reasoning_format else {}
        own |= self.defaults_of(preset)
        return dataclasses.replace(of_server, **own) if own else of_server

    @property
    def ensemble(self) -> str:
        """The ensemble's name in Triton."""
        return model_id_to_ensemble(self.model_id, self.replica)

    @property
    def layout(self) -> Layout:
        """The stages and the ensembles of the model."""
        return GENERATOR if self.task is Task.GENERATE else ENCODER

    def to_config(self) -> dict[str, str]:
        """Return the parameters of config.pbtxt."""
        return {PARAMETER: msgspec.json.encode(self, enc_hook=str, order="deterministic").decode()}

    @classmethod
    def from_config(cls, parameters: Mapping[str, str], path: Callable[[str], str] = str) -> ModelParameters:
        """Read the parameters of config.pbtxt. Additions of later versions are ignored.

        Args:
            path: returns the path under which this process can open a file.

        Raises:
            ValueError: the configuration is not ours, or an earlier version has rendered it.
        """
        try:
            found = msgspec.json.decode(parameters[PARAMETER], type=cls, dec_hook=lambda kind, text: kind(path(text)))
            for defaults in (found.defaults, *(preset.defaults for preset in found.presets.values())):
                checked_defaults(defaults)
        except (KeyError, ValueError, msgspec.DecodeError) as exc:
            raise ValueError(f"another version has rendered this config.pbtxt ({exc}): render the repository") from exc
        return found


def checked_defaults(values: Mapping[str, object]) -> ModelDefaults:
    """Check request defaults, given by name; `sampling: openai` stands for API_SAMPLING.

    Raises:
        ValueError: names the default, its value and the rule.
    """
    defaults: dict[str, object] = {}
    for name, value in values.items():
        if name not in _DEFAULTS:
            raise ValueError(f"{name}: {expected_one_of(name, _DEFAULTS)}")
        read, rule = _DEFAULTS[name]
        try:
            defaults[name] = read(value)
        except ValueError as exc:
            raise ValueError(f"{name}={json.dumps(value)}: must be {rule}") from exc
    if defaults.pop("sampling", None) is not None:
        defaults = API_SAMPLING | defaults
    return cast(ModelDefaults, defaults)


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_INT32:
        raise ValueError(value)
    return value


def _seed(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(value)
    return value


def _stop(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not 1 <= len(texts) <= MAX_STOP_WORDS or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(value)
    return texts


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
    "seed": (_seed, "a whole number from 0 to 2^63 - 1"),
    "stop": (_stop, f"a text, or a list of at most {MAX_STOP_WORDS} texts, none of them empty"),
    "sampling": (("openai",).index, "openai"),
}
