"""Triton's repository of models, over gRPC: lists, loads and unloads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Mapping
from typing import Any

from msgspec.structs import replace
from tritonclient.grpc import service_pb2

from frontend.errors import ModelNotReady, NotFound, TritonKeyRefused
from frontend.triton.channel import RPC_TIMEOUT_S, TritonChannel, unary
from frontend.triton.models import ModelSnapshot, ServedModel
from model_repository.contract.tensors import ARBITER, GENERATOR, ensemble_of_stage, ensemble_to_model_id, stage_name
from model_repository.model_parameters import ModelParameters

logger = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 1800.0  # a large engine takes minutes to load
_READY, _LOADING, _UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"  # Triton's words


class Repository:
    """Triton's list of models, and their loading.

    Args:
        connection: to it.
        offered: ids of the models that there are, whatever else Triton has.
    """

    def __init__(self, connection: TritonChannel, offered: Container[str]) -> None:
        self._connection = connection
        self._offered = offered
        self._is_refused = False  # whether Triton refuses our key

    async def snapshot(self, adapters: Mapping[str, tuple[str, ...]]) -> ModelSnapshot:
        """Return the models that are served now: the ensembles with our parameters.

        Args:
            adapters: by ensemble: those that an engine named last, which may be others than those that were built in.

        Raises:
            APIError: Triton did not answer.
        """
        try:
            states = await self._states()
        except TritonKeyRefused as exc:
            if not self._is_refused:
                logger.warning("%s: %s A model that is not ready is not seen.", self._connection.endpoint, exc.message)
            self._is_refused = True
            states = await self._ready_states()
        ensembles = self._ensembles_of(states)
        names = [name for name, state in ensembles.items() if state == _READY]
        configs = dict(zip(names, await asyncio.gather(*map(self._config, names)), strict=True))
        found = (_model_of(name, config, adapters.get(name)) for name, config in configs.items() if config is not None)
        models = sorted(filter(None, found), key=lambda model: model.parameters.replica)
        # A model that was unloaded since its state was read is not ready. Without it here, its names would be unknown.
        ensembles |= {name: _UNAVAILABLE for name, config in configs.items() if config is None}
        ready: dict[str, ServedModel] = {}
        further = tuple(model for model in models if ready.setdefault(model.id, model) is not model)
        return ModelSnapshot(
            ready=ready,
            unready={
                model_id: state.lower()
                for name, state in ensembles.items()
                if state not in (_READY, "")  # "": never loaded, so not meant to be served
                and (model_id := ensemble_to_model_id(name)) not in ready
            },
            further=further,
        )

    async def ensembles(self) -> set[str]:
        """Return the ensembles of all models in the repository.

        Raises:
            APIError: Triton did not answer.
        """
        return set(self._ensembles_of(await self._states()))

    async def is_loading(self, name: str) -> bool:
        """Whether Triton is loading a stage or an ensemble.

        Raises:
            APIError: Triton did not answer.
        """
        return (await self._states()).get(name) == _LOADING

    async def unload(self, name: str) -> None:
        """Unload a stage or an ensemble, by its Triton name.

        Raises:
            APIError: Triton did not do it.
        """
        await self._call_restricted("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=name))

    async def reload_arbiter(self) -> None:
        """Load the arbiter of models again, unless another frontend does.

        Raises:
            APIError: Triton did not do it.
        """
        if not await self.is_loading(ARBITER):
            await self.unload(ARBITER)
            await self._load(ARBITER)

    async def load(self, ensemble: str, stage: str) -> None:
        """Load a stage and the ensembles that use it; return when the model is ready.

        Raises:
            APIError: Triton did not do it.
        """
        await self._load(stage)
        # Triton has already reloaded the ensembles that it served before. A load of a ready ensemble would reload its
        # other stages too, the engine among them, since Python's cache of model.py has changed their folders.
        states = await self._states()
        for name in (stage_name(ensemble, each) for each in GENERATOR.ensembles):
            if states.get(name, _READY) != _READY:
                await self._load(name)

    async def _load(self, name: str) -> None:
        await self._call_restricted(
            "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=name), _LOAD_TIMEOUT_S
        )

    def _ensembles_of(self, states: Mapping[str, str]) -> dict[str, str]:
        """Return the state of each offered ensemble, by its name."""
        return {
            name: state
            for name, state in states.items()
            if ensemble_of_stage(name) == name and ensemble_to_model_id(name) in self._offered
        }

    async def _states(self) -> dict[str, str]:
        """Return the state of each stage and ensemble.

        Raises:
            TritonKeyRefused: the index is a restricted API.
        """
        index = await self._call_restricted("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return {entry.name: entry.state for entry in index.models}

    async def _ready_states(self) -> dict[str, str]:
        """Return the states of ready models only, from the statistics, which need no key."""
        statistics = await unary(self._connection.stub.ModelStatistics, service_pb2.ModelStatisticsRequest())
        return {entry.name: _READY for entry in statistics.model_stats}

    async def _call_restricted(self, method: str, request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
        return await unary(getattr(self._connection.stub, method), request, timeout_s, self._connection.key_metadata)

    async def _config(self, ensemble: str) -> Any | None:
        """Return the configuration of an ensemble that was ready; None: it is not loaded any more."""
        with contextlib.suppress(NotFound, ModelNotReady):
            answer = await unary(self._connection.stub.ModelConfig, service_pb2.ModelConfigRequest(name=ensemble))
            return answer.config
        return None


def _model_of(ensemble: str, config: Any, adapters: tuple[str, ...] | None) -> ServedModel | None:
    if config.platform != "ensemble":
        return None
    try:
        parameters = ModelParameters.from_config(
            {name: value.string_value for name, value in config.parameters.items()}
        )
    except ValueError:  # an ensemble of another project
        return None
    if adapters is not None:
        parameters = replace(parameters, adapters=dict.fromkeys(adapters, ""))  # only the engine needs paths
    return ServedModel(ensemble=ensemble, parameters=parameters)
