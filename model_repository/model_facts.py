"""The facts of a model: a build finds them, its artifact stores them, and engine, stages and frontend read them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


class Pooling(StrEnum):
    """How a model that embeds makes one vector of its prompt's."""

    MEAN = "mean"
    CLS = "cls"  # the first token's
    LAST = "last"
    RANK = "rank"  # scores, by a classification head


class Task(StrEnum):
    """The work of a model."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"

    @classmethod
    def of(cls, pooling: str) -> Task:
        """Return the work of a model that pools so: a value of Pooling, or empty."""
        if not pooling:
            return cls.GENERATE
        return cls.SCORE if pooling == Pooling.RANK else cls.EMBED


class ModelFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts that pass from the build of a model to its use as they are."""

    context_window: int  # tokens of prompt and completion together
    eos_token_ids: frozenset[int]
    precision: str = "f16"  # matrices and KV cache
    options: Mapping[str, str] = {}  # the runtime's own
    requires: Mapping[str, str] = {}  # properties of the serving machine: see machine.why_unfit
    adapters: Mapping[str, str] = {}  # LoRA adapters in the artifact: name to path
    pooling: str = ""  # a value of Pooling: the model embeds; empty: it generates
    labels: tuple[str, ...] = ()  # those of the scores, in their order, of a model that scores
    has_token_types: bool = False  # the vocabulary is there twice: the tokens of a pair's second text are others
    min_dimensions: int = 0  # of a model that embeds: the shortest useful beginning of a vector; 0: only whole vectors
    # These three are written even if empty, since frontends until November 2026 require them: msgspec leaves out plain
    # defaults alone.
    tool_call_format: str = field(default_factory=lambda: "")
    reasoning_format: str = field(default_factory=lambda: "")  # a name in `reasoning_formats`; empty: no thinking
    # Variables, REASONING_FIELDS and `name` of messages that the chat template reads.
    template_fields: tuple[str, ...] = field(default_factory=lambda: ())

    @property
    def task(self) -> Task:
        """The work of the model."""
        return Task.of(self.pooling)

    def facts(self) -> dict[str, Any]:
        """Return them by name."""
        return {name: getattr(self, name) for name in ModelFacts.__struct_fields__}
