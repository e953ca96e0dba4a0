"""Loads and unloads LoRA adapters while the server runs. The engines do the work, and all frontends poll them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frontend.errors import APIError, InvalidRequest, ModelNotFound, NotFound, shown
from frontend.operations.models import STATS_DEADLINE_S, check_id
from frontend.triton.client import TritonClient
from frontend.triton.models import ModelSnapshot
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import replica_suffix

logger = logging.getLogger(__name__)

type Command = Callable[[TritonClient, str], Awaitable[EngineStats]]  # arguments: a client, an ensemble


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results at the endpoints with the model: the engine's state after the command, or an error.

    Behind an endpoint, `@2` stands for the second replica there.
    """

    by_endpoint: Mapping[str, EngineStats | APIError]

    @property
    def failure(self) -> APIError | None:
        """The first error; None: all succeeded."""
        return next((outcome for outcome in self.by_endpoint.values() if isinstance(outcome, APIError)), None)

    def describe(self, done: Callable[[EngineStats], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the results for the answer; `done` describes a success."""
        return {
            endpoint: {"state": "failed", "code": outcome.code, "message": outcome.message}
            if isinstance(outcome, APIError)
            else dict(done(outcome))
            for endpoint, outcome in self.by_endpoint.items()
        }


class AdapterCommands:
    """Sends commands to the engines of a model, at every endpoint with the model.

    Args:
        tritons: returns the clients of the present endpoints.
        settle_s: seconds until every worker has polled the engines.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        tritons: Callable[[], Mapping[str, TritonClient]],
        settle_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._tritons = tritons
        self._settle_s = settle_s
        self._sleep = sleep

    async def list(self, model_id: str) -> Outcomes:
        """Return the adapters of each engine.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        return await self._everywhere(
            model_id, lambda triton, ensemble: triton.engine_stats(ensemble, STATS_DEADLINE_S)
        )

    async def load(self, model_id: str, name: str, source: str, served: ModelSnapshot) -> Outcomes:
        """Load an adapter. Return once every worker knows it.

        Args:
            model_id: the model's.
            name: the adapter's name for clients.
            source: its folder below the engines' root of adapters.
            served: the models and names in use.

        Raises:
            InvalidRequest: another model uses the name.
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        taken = served.names().get(name)
        if taken is not None and (taken.model.id != model_id or not taken.lora_name):
            raise InvalidRequest(f"name={shown(name)}: already a name of the model {taken.model.id}", param="name")
        logger.warning("loading the adapter %s of %s", name, model_id)
        outcomes = await self._everywhere(
            model_id, lambda triton, ensemble: triton.load_adapter(ensemble, name, source)
        )
        await self._sleep(self._settle_s)
        return outcomes

    async def unload(self, model_id: str, name: str) -> Outcomes:
        """Unload an adapter everywhere: new requests cannot use it. Return once every worker knows.

        Raises:
            NotFound: no engine has it.
            ModelNotFound: no model of this id is loaded.
            APIError: no endpoint answers.
        """
        logger.warning("unloading the adapter %s of %s", name, model_id)
        outcomes = await self._everywhere(model_id, lambda triton, ensemble: triton.unload_adapter(ensemble, name))
        found = {key: each for key, each in outcomes.by_endpoint.items() if not isinstance(each, NotFound)}
        if not found:
            rule = f"the model {model_id} has no adapter of this name"
            raise NotFound(f"name={shown(name)}: {rule}", param="name", code="adapter_not_found")
        await self._sleep(self._settle_s)
        return Outcomes(found)

    async def _everywhere(self, model_id: str, command: Command) -> Outcomes:
        check_id(model_id)
        works = [self._at(endpoint, triton, model_id, command) for endpoint, triton in self._tritons().items()]
        outcomes = {place: outcome for found in await asyncio.gather(*works) for place, outcome in found.items()}
        if not outcomes:
            raise ModelNotFound(model_id)
        for place, outcome in outcomes.items():
            if isinstance(outcome, APIError):
                logger.error("the command failed at %s: %s", place, outcome.message)
        return Outcomes(outcomes)

    async def _at(
        self, endpoint: str, triton: TritonClient, model_id: str, command: Command
    ) -> dict[str, EngineStats | APIError]:
        """Return the results at one endpoint, of each replica that is loaded there."""
        try:
            ensembles = (await triton.snapshot()).replicas_of(model_id)
        except APIError as exc:
            return {endpoint: exc}

        async def outcome(ensemble: str) -> EngineStats | APIError:
            try:
                return await command(triton, ensemble)
            except APIError as exc:
                return exc

        places = [endpoint + replica_suffix(ensemble) for ensemble in ensembles]
        return dict(zip(places, await asyncio.gather(*map(outcome, ensembles)), strict=True))
