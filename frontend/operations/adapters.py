"""Loads and unloads LoRA adapters while the server runs. The engines do both, and tell every frontend that looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frontend.errors import APIError, InvalidRequest, ModelNotFound, NotFound, shown
from frontend.triton.models import ModelSnapshot, Triton
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import model_id_to_slug

logger = logging.getLogger(__name__)

_STATS_DEADLINE_S = 2.0

type Order = Callable[[Triton, str], Awaitable[EngineStats]]  # given to the engine of an ensemble


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How it went at each endpoint that has the model: what its engine said afterwards, or why it did not do it."""

    by_endpoint: Mapping[str, EngineStats | APIError]

    @property
    def failure(self) -> APIError | None:
        """The first one; None: all did it."""
        return next((outcome for outcome in self.by_endpoint.values() if isinstance(outcome, APIError)), None)

    def describe(self, done: Callable[[EngineStats], Mapping[str, Any]]) -> dict[str, Any]:
        """Return them for people: `done` says what became of it where it was done."""
        return {
            endpoint: {"state": "failed", "code": outcome.code, "message": outcome.message}
            if isinstance(outcome, APIError)
            else dict(done(outcome))
            for endpoint, outcome in self.by_endpoint.items()
        }


class AdapterControl:
    """Tells the engines of a model, at every endpoint that has it.

    Args:
        tritons: by endpoint; those that are there when something is asked for.
        settle_s: after which every worker has noticed.
        sleep: lets time pass.
    """

    def __init__(
        self,
        tritons: Mapping[str, Triton],
        settle_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._tritons = tritons
        self._settle_s = settle_s
        self._sleep = sleep

    async def look(self, model_id: str) -> Outcomes:
        """Ask each engine for what it has.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        return await self._everywhere(model_id, lambda triton, slug: triton.engine_stats(slug, _STATS_DEADLINE_S))

    async def load(self, model_id: str, name: str, source: str, served: ModelSnapshot) -> Outcomes:
        """Load an adapter; where it is loaded already, nothing changes. Returns when every worker knows of it.

        Args:
            model_id: the model's.
            name: by which clients will ask for it.
            source: its folder below the engines' root of adapters.
            served: everything that has a name already.

        Raises:
            InvalidRequest: the name means something else.
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        taken = served.names().get(name)
        if taken is not None and (taken.model.id != model_id or not taken.lora_name):
            raise InvalidRequest(f"name={shown(name)}: it is a name of the model {taken.model.id}", param="name")
        logger.warning("loading the adapter %s of %s", name, model_id)
        outcomes = await self._everywhere(model_id, lambda triton, slug: triton.load_adapter(slug, name, source))
        await self._sleep(self._settle_s)
        return outcomes

    async def unload(self, model_id: str, name: str) -> Outcomes:
        """Unload an adapter wherever it is loaded: no request gets it any more. Returns when every worker knows.

        Raises:
            NotFound: it is nowhere.
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        logger.warning("unloading the adapter %s of %s", name, model_id)
        outcomes = await self._everywhere(model_id, lambda triton, slug: triton.unload_adapter(slug, name))
        found = {key: each for key, each in outcomes.by_endpoint.items() if not isinstance(each, NotFound)}
        if not found:
            rule = f"the model {model_id} has no adapter of this name"
            raise NotFound(f"name={shown(name)}: {rule}", param="name", code="adapter_not_found")
        await self._sleep(self._settle_s)
        return Outcomes(found)

    async def _everywhere(self, model_id: str, order: Order) -> Outcomes:
        try:
            slug = model_id_to_slug(model_id)
        except ValueError as exc:
            raise InvalidRequest(str(exc), param="model") from exc
        tritons = dict(self._tritons)
        works = [self._at(triton, model_id, slug, order) for triton in tritons.values()]
        outcomes = dict(zip(tritons, await asyncio.gather(*works), strict=True))
        concerned = {endpoint: outcome for endpoint, outcome in outcomes.items() if outcome is not None}
        if not concerned:
            raise ModelNotFound(model_id)
        for endpoint, outcome in concerned.items():
            if isinstance(outcome, APIError):
                logger.error("%s did not do it: %s", endpoint, outcome.message)
        return Outcomes(concerned)

    async def _at(self, triton: Triton, model_id: str, slug: str, order: Order) -> EngineStats | APIError | None:
        """Return how it went at one endpoint; None: the model is not loaded there."""
        try:
            if model_id not in (await triton.snapshot()).ready:
                return None
            return await order(triton, slug)
        except APIError as exc:
            return exc
