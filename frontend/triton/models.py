"""What Triton serves, as the frontend sees it: the models, a short-lived list of them, and the seam to Triton."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from frontend.errors import APIError, ModelNotFound, ModelNotReady
from model_repository.contract.output import EngineStats, GenerationChunk
from model_repository.contract.request import GenerationRequest, Prompt, TokenizeAnswer
from model_repository.model_parameters import ModelParameters

MAX_AGE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that is loaded and ready, as its ensemble describes it."""

    slug: str  # the ensemble's name in Triton
    parameters: ModelParameters

    @property
    def id(self) -> str:
        """OpenAI's name of it."""
        return self.parameters.model_id

    @property
    def context_window(self) -> int:
        """Tokens of prompt and completion together."""
        return self.parameters.context_window

    @property
    def created(self) -> int:
        """Unix seconds."""
        return self.parameters.created

    @property
    def owned_by(self) -> str:
        """Who serves it."""
        return self.parameters.owned_by

    @property
    def fingerprint(self) -> str:
        """Another one where the same request may get another answer."""
        return self.parameters.fingerprint

    @property
    def tool_call_format(self) -> str:
        """How it writes tool calls."""
        return self.parameters.tool_call_format


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name that clients may use, and what it stands for."""

    asked: str  # an id, an alias, or an adapter's name
    model: ServedModel
    lora_name: str = ""  # the adapter, where it names one

    @property
    def model_id(self) -> str:
        """The id of the model."""
        return self.model.id


@dataclass(frozen=True, slots=True)
class KnownName:
    """What a name stands for whose model is not ready, as far as it is known."""

    asked: str
    model_id: str
    lora_name: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelSnapshot:
    """The models of one moment."""

    ready: Mapping[str, ServedModel] = field(default_factory=dict)  # by id
    unready: Mapping[str, str] = field(default_factory=dict)  # id -> Triton's word for its state

    @cached_property
    def by_slug(self) -> Mapping[str, ServedModel]:
        """The ready ones by their ensembles' names."""
        return {model.slug: model for model in self.ready.values()}

    def names(self) -> dict[str, ModelName]:
        """Return everything that clients may ask for. An id wins over an alias or an adapter's name that equals it."""
        names: dict[str, ModelName] = {}
        for model_id in sorted(self.ready):
            model = self.ready[model_id]
            for alias in model.parameters.aliases:
                names.setdefault(alias, ModelName(asked=alias, model=model))
            for adapter in model.parameters.adapters:
                names.setdefault(adapter, ModelName(asked=adapter, model=model, lora_name=adapter))
        return names | {model.id: ModelName(asked=model.id, model=model) for model in self.ready.values()}


class Triton(Protocol):
    """What the frontend asks of Triton; `frontend.triton.client.TritonClient` is the real one."""

    # Told the Triton name of a stage whose process is gone, and when the request began that found it (time.monotonic).
    on_stage_down: Callable[[str, float], None]

    def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion; the last chunk carries the finish reason. Leaving it cancels the generation.

        Raises:
            APIError: the request was refused, or failed.
        """

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """End the running generations that need a lost stage, by its Triton name; return how many there were.

        Args:
            spared_epoch: those that were begun on an engine of this epoch go on; None: none do.
        """

    def end_all(self, error: APIError) -> int:
        """End every running generation; return how many there were."""

    async def snapshot(self) -> ModelSnapshot:
        """Return what Triton serves at this moment."""

    async def check(self, slug: str, request: GenerationRequest) -> None:
        """Have the tokenizer stage look at a request, without generating anything.

        Raises:
            APIError: the request would be refused, or Triton did not answer.
        """

    async def tokenize(self, slug: str, prompt: Prompt, *, add_special_tokens: bool) -> TokenizeAnswer:
        """Return a prompt's tokens.

        Raises:
            APIError: the prompt was refused, or Triton did not answer.
        """

    async def detokenize(self, slug: str, token_ids: Sequence[int], *, has_special_tokens: bool) -> str:
        """Return the text of token ids; special tokens are left out unless asked for.

        Raises:
            APIError: the ids were refused, or Triton did not answer.
        """

    async def engine_stats(self, slug: str, timeout_s: float) -> EngineStats:
        """Ask a model's engine how it is.

        Raises:
            APIError: it did not answer.
        """

    async def unload(self, stage: str) -> None:
        """Unload a stage, by its Triton name.

        Raises:
            APIError: Triton did not do it.
        """

    async def load(self, slug: str, stage: str) -> None:
        """Load a stage and the ensemble that stands on it; return when the model is ready.

        Raises:
            APIError: Triton did not do it.
        """

    async def repository(self) -> set[str]:
        """Return the slugs of all models that Triton could load.

        Raises:
            APIError: Triton did not answer.
        """

    async def fail_running(self, slug: str) -> None:
        """Have a model's engine end everything that it works on with an error, whoever asked for it.

        Raises:
            APIError: it did not answer.
        """

    async def load_adapter(self, slug: str, name: str, source: str) -> EngineStats:
        """Have a model's engine load a LoRA adapter from below its root of adapters, and offer it under a name.

        Raises:
            APIError: it refused, or did not answer.
        """

    async def unload_adapter(self, slug: str, name: str) -> EngineStats:
        """Have a model's engine offer a LoRA adapter no more; requests under way keep it.

        Raises:
            APIError: it has none of that name, refused, or did not answer.
        """

    async def fail_streams(self, slug: str) -> None:
        """Have a model's engine do the same, and end every output stream: its batches arrive nowhere.

        Raises:
            APIError: it did not answer.
        """

    def stalled_stages(self, slug: str, fair_s: float, limit_s: float) -> set[str]:
        """Return the stages, by their Triton names, through which nothing has come for longer than the limit.

        Args:
            fair_s: for how much of the time since this was asked last the engine has been seen at work.
        """

    async def close(self) -> None:
        """Let go of the connection."""


class ModelSource(Protocol):
    """Who knows what is served."""

    async def snapshot(self) -> ModelSnapshot:
        """Return what is served at this moment."""


class ModelDirectory:
    """The served models by their names, asked of Triton at most once a second unless a name is missing.

    Args:
        aliases: what some names stand for, until their models have been seen.
    """

    def __init__(
        self,
        triton: ModelSource,
        clock: Callable[[], float] = time.monotonic,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._triton = triton
        self._clock = clock
        self._turn = asyncio.Lock()
        self._fetching: asyncio.Task[ModelSnapshot] | None = None  # Triton has been asked
        self._next: asyncio.Task[ModelSnapshot] | None = None  # it has not been yet
        self._names: Mapping[str, ModelName] = {}
        # What each name stands for, or did when its model was last ready.
        self._known = {alias: KnownName(alias, model_id) for alias, model_id in aliases.items()}
        self._fetched_at = -math.inf
        self.latest = ModelSnapshot()  # that was fetched, also when it cannot be fetched any more
        self.error: APIError | None = None  # of the last time that it was fetched
        self.is_looked_at = False  # once, with whatever result

    async def snapshot(self) -> ModelSnapshot:
        """Return the models as they were less than a second ago."""
        if self._clock() - self._fetched_at >= MAX_AGE_S:
            await asyncio.shield(self._fetching or self.refreshing())
        return self.latest

    async def names(self) -> Mapping[str, ModelName]:
        """Return everything that clients may ask for, as it was less than a second ago."""
        await self.snapshot()
        return self._names

    async def get(self, asked: str) -> ModelName:
        """Return what a name stands for.

        Raises:
            ModelNotFound: nothing is served by that name.
            ModelNotReady: it is a model's id, or was another name of it, and the model is not loaded now.
        """
        names = await self.names()
        if asked not in names:
            await asyncio.shield(self.refreshing())
        if asked in self._names:
            return self._names[asked]
        model_id = self.known(asked).model_id
        if model_id in self.latest.unready:
            raise ModelNotReady(f"The model {asked} is not ready now (state: {self.latest.unready[model_id]}).")
        raise ModelNotFound(asked)

    def known(self, asked: str) -> KnownName:
        """Return what a name stands for, or did when its model was last ready; any other one may be an id."""
        return self._known.get(asked) or KnownName(asked, asked)

    def refreshing(self) -> asyncio.Task[ModelSnapshot]:
        """Fetch the models as they are from now on, once for all who ask before Triton is asked.

        What has been asked of Triton already may be answered as it was before. Whoever waits must not cancel this for
        the others.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._fetch_in_turn())
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is in `error`
        return self._next

    async def _fetch_in_turn(self) -> ModelSnapshot:
        async with self._turn:
            self._fetching, self._next = self._next, None
            try:
                return await self._fetch()
            finally:
                self._fetching = None

    async def _fetch(self) -> ModelSnapshot:
        started_at = self._clock()
        try:
            self.latest = await self._triton.snapshot()
        except APIError as exc:
            self.error = exc
            raise
        finally:
            self.is_looked_at = True
        self.error = None
        self._names = self.latest.names()
        self._known = {name: known for name, known in self._known.items() if known.model_id in self.latest.unready}
        self._known |= {name: KnownName(name, meant.model_id, meant.lora_name) for name, meant in self._names.items()}
        self._fetched_at = started_at
        return self.latest
