"""The models that Triton serves, and a list of them that is at most a second old."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from msgspec.structs import replace

from frontend.errors import APIError, ModelNotFound, ModelNotReady
from model_repository.contract.tensors import replica_suffix
from model_repository.model_facts import ModelFacts, Task
from model_repository.model_parameters import ModelParameters, Preset

logger = logging.getLogger(__name__)

MAX_AGE_S = 1.0
# A request may use an older list while a new one is fetched: it need not wait for Triton after a quiet second.
MAX_AGE_FOR_REQUESTS_S = 10.0
# Adapters may differ: a request for an adapter goes where it is. Settings of the machine may differ, too.
_COMPARED = (
    *(name for name in ModelFacts.__struct_fields__ if name not in ("adapters", "options", "precision", "requires")),
    *("max_sequences", "runtime", "fingerprint", "aliases", "presets", "capabilities", "defaults"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that is served, or one of its replicas, described by the parameters of its ensemble."""

    ensemble: str  # the ensemble's name in Triton
    parameters: ModelParameters

    @property
    def id(self) -> str:
        """The model id of OpenAI's API."""
        return self.parameters.model_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name that clients may use, with the model and the adapter or the preset behind it."""

    requested: str  # an id, an alias, or the name of an adapter or a preset
    model: ServedModel
    lora_name: str = ""  # the adapter, where it names one
    preset: Preset | None = None  # where it names one

    @property
    def is_plain(self) -> bool:
        """Whether it means the model as it is, by its id or an alias."""
        return not self.lora_name and self.preset is None

    @property
    def model_id(self) -> str:
        """The id of the model."""
        return self.model.id


def in_order(names: Iterable[ModelName]) -> list[ModelName]:
    """Return names in the order in which the user has named the models, those that generate first.

    Many clients chat with the first one of the list.
    """

    def key(name: ModelName) -> tuple[bool, int, bool, str]:
        parameters = name.model.parameters
        return parameters.task is not Task.GENERATE, parameters.position, not name.is_plain, name.requested

    return sorted(names, key=key)


@dataclass(frozen=True, slots=True)
class KnownName:
    """A name of a model that is not ready, or was not when the list was fetched."""

    requested: str
    model_id: str
    lora_name: str = ""
    is_plain: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelSnapshot:
    """The models of one moment."""

    ready: Mapping[str, ServedModel] = field(default_factory=dict)  # key: id
    unready: Mapping[str, str] = field(default_factory=dict)  # id -> Triton's word for its state
    asleep: Mapping[str, ServedModel] = field(default_factory=dict)  # by id: not loaded, but a request can load them
    further: tuple[ServedModel, ...] = ()  # other ready replicas of the models, if this is of one Triton

    @cached_property
    def by_ensemble(self) -> Mapping[str, ServedModel]:
        """Each ready replica by its ensemble's name."""
        return {model.ensemble: model for model in (*self.ready.values(), *self.further)}

    def replicas_of(self, model_id: str) -> list[str]:
        """Return the ensembles of a model's ready replicas."""
        return self._by_model.get(model_id, [])

    @cached_property
    def _by_model(self) -> Mapping[str, list[str]]:
        ensembles: dict[str, list[str]] = {}
        for ensemble, model in self.by_ensemble.items():
            ensembles.setdefault(model.id, []).append(ensemble)
        return ensembles

    def names(self) -> dict[str, ModelName]:
        """Return all names that clients may use. An id wins over another equal name."""
        names: dict[str, ModelName] = {}
        models = {**self.asleep, **self.ready}
        for model_id in sorted(models):
            model = models[model_id]
            for alias in model.parameters.aliases:
                names.setdefault(alias, ModelName(requested=alias, model=model))
            for adapter in model.parameters.adapters:
                names.setdefault(adapter, ModelName(requested=adapter, model=model, lora_name=adapter))
            for preset, each in model.parameters.presets.items():
                names.setdefault(preset, ModelName(requested=preset, model=model, preset=each))
        return names | {model.id: ModelName(requested=model.id, model=model) for model in models.values()}


class SnapshotSource(Protocol):
    """A source of snapshots: one Triton, or a pool of them."""

    async def snapshot(self) -> ModelSnapshot:
        """Return the models that are served now."""


class ModelDirectory:
    """The served models by their names. Triton is asked at most once a second, and when a name is unknown.

    A request uses a list of the last ten seconds while a newer one is fetched, if its name is still served.

    Args:
        aliases: further names of models, by name; a name that a model has of its own goes first.
        is_served: whether a name of the list can be served now, as far as is known without asking.
    """

    def __init__(
        self,
        triton: SnapshotSource,
        clock: Callable[[], float] = time.monotonic,
        aliases: Mapping[str, str] = MappingProxyType({}),
        is_served: Callable[[ModelName], bool] = lambda name: True,
    ) -> None:
        self._triton = triton
        self._is_served = is_served
        self._clock = clock
        self._fetch_lock = asyncio.Lock()
        self._fetching: asyncio.Task[ModelSnapshot] | None = None  # waits for Triton's answer
        self._next: asyncio.Task[ModelSnapshot] | None = None  # has not asked Triton yet
        self._names: Mapping[str, ModelName] = {}
        self._aliases = aliases
        # By name; the model may have become unready since.
        self._known = {alias: KnownName(alias, model_id) for alias, model_id in aliases.items()}
        self._fetched_at = -math.inf
        self.latest = ModelSnapshot()  # the last one that could be fetched
        self.error: APIError | None = None  # the last attempt's to fetch
        self.has_tried = False  # a fetch has ended, successfully or not

    async def snapshot(self) -> ModelSnapshot:
        """Return the models as they were less than a second ago."""
        if self._clock() - self._fetched_at >= MAX_AGE_S:
            await asyncio.shield(self._fetching or self.refreshing())
        return self.latest

    async def names(self) -> Mapping[str, ModelName]:
        """Return all names that clients may use, as they were less than a second ago."""
        await self.snapshot()
        return self._names

    async def get(self, requested: str) -> ModelName:
        """Return a name with its model.

        Raises:
            ModelNotFound: no model has that name.
            ModelNotReady: the name's model is not loaded now.
        """
        age_s = self._clock() - self._fetched_at
        if age_s >= MAX_AGE_S:
            fetching, name = self._fetching or self.refreshing(), self._names.get(requested)
            is_old = age_s >= MAX_AGE_FOR_REQUESTS_S or self.error is not None
            if is_old or name is None or not self._is_served(name):
                await asyncio.shield(fetching)
        if requested not in self._names:
            await asyncio.shield(self.refreshing())
        if requested in self._names:
            return self._names[requested]
        model_id = self.known(requested).model_id
        if model_id in self.latest.unready:
            raise ModelNotReady(f"The model {requested} is not ready now (state: {self.latest.unready[model_id]}).")
        raise ModelNotFound(requested)

    def known(self, requested: str) -> KnownName:
        """Return a name with the id of its model. An unknown name may be an id itself."""
        return self._known.get(requested) or KnownName(requested, requested)

    def refreshing(self) -> asyncio.Task[ModelSnapshot]:
        """Start to fetch the models, and return the task, which callers share until it asks Triton.

        A fetch that has already asked Triton may bring an older answer, so it is not shared. A caller must not cancel
        the task.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._fetch_in_turn())
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is in `error`
        return self._next

    async def _fetch_in_turn(self) -> ModelSnapshot:
        async with self._fetch_lock:
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
            self.has_tried = True
        self.error = None
        given = {
            alias: ModelName(requested=alias, model=model)
            for alias, model_id in self._aliases.items()
            if (model := self.latest.ready.get(model_id) or self.latest.asleep.get(model_id)) is not None
        }
        asleep = self.latest.asleep
        self._known = {
            name: known
            for name, known in self._known.items()
            if known.model_id in self.latest.unready or known.model_id in asleep
        }
        # Adapters that were loaded while the model ran come back with it.
        adapters = {
            name: ModelName(requested=name, model=asleep[known.model_id], lora_name=known.lora_name)
            for name, known in self._known.items()
            if known.lora_name and known.model_id in asleep
        }
        self._names = adapters | given | self.latest.names()
        self._known |= {
            name: KnownName(name, meant.model_id, meant.lora_name, meant.is_plain)
            for name, meant in self._names.items()
        }
        self._fetched_at = started_at
        return self.latest


class ModelUnion:
    """Unites the models of the replicas. If two replicas describe a model differently, the first one counts.

    Args:
        expected: ids of models that are known also where no replica has heard of them.
        is_remembering: an expected model that was served once counts as one that a request can load.
    """

    def __init__(self, expected: Collection[str] = (), *, is_remembering: bool = False) -> None:
        self._expected, self._is_remembering = expected, is_remembering
        self._remembered: dict[str, ServedModel] = {}
        self._logged: set[tuple[str, str, tuple[str, ...]]] = set()

    def of(self, directories: Mapping[str, ModelDirectory]) -> ModelSnapshot:
        """Return the models that are ready, or can be loaded, at one endpoint at least, and the others that are known.

        Args:
            directories: by endpoint; those that do not answer count with what they served before.
        """
        ready: dict[str, ServedModel] = {}
        asleep: dict[str, ServedModel] = {}
        unready = dict.fromkeys(self._expected, "not loaded")
        for endpoint, directory in directories.items():
            unready |= directory.latest.unready
            if directory.error is None:
                asleep = {**directory.latest.asleep, **asleep}
            else:
                unready |= dict.fromkeys(directory.latest.asleep, "unreachable")
            for ensemble, model in directory.latest.by_ensemble.items():
                if directory.error is not None:
                    unready[model.id] = "unreachable"
                elif model.id in ready:
                    ready[model.id] = self._merged(ready[model.id], model, endpoint + replica_suffix(ensemble))
                else:
                    ready[model.id] = model
        if self._is_remembering:
            self._remembered |= {model_id: ready[model_id] for model_id in self._expected if model_id in ready}
            asleep = {**self._remembered, **asleep}
        asleep = {model_id: model for model_id, model in asleep.items() if model_id not in ready}
        known = ready.keys() | asleep.keys()
        unready = {model_id: state for model_id, state in unready.items() if model_id not in known}
        return ModelSnapshot(ready=ready, asleep=asleep, unready=unready)

    def _merged(self, first: ServedModel, other: ServedModel, endpoint: str) -> ServedModel:
        parameters = first.parameters
        differing = tuple(name for name in _COMPARED if getattr(parameters, name) != getattr(other.parameters, name))
        if differing and (key := (first.id, endpoint, differing)) not in self._logged:
            self._logged.add(key)
            logger.error("%s at %s differs from the other replicas: %s", first.id, endpoint, ", ".join(differing))
        adapters = {**parameters.adapters, **other.parameters.adapters}
        if len(adapters) == len(parameters.adapters):
            return first
        return dataclasses.replace(first, parameters=replace(parameters, adapters=adapters))
