"""Triton's repository of models, over gRPC: what is in it and what is served, loading and unloading."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Container, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from frontend.errors import ModelNotReady, NotFound, TritonKeyRefused
from frontend.triton.channel import RPC_TIMEOUT_S, Connection, unary
from frontend.triton.models import ModelSnapshot, ServedModel
from model_repository.contract.tensors import ENSEMBLES, slug_of_stage, slug_to_model_id, stage_name
from model_repository.model_parameters import ModelParameters

logger = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 1800.0  # a large engine takes minutes to load
_READY = "READY"


class Repository:
    """What Triton knows of models, not what they do.

    Args:
        connection: to it.
        offered: ids of the models that there are, whatever else Triton has.
    """

    def __init__(self, connection: Connection, offered: Container[str]) -> None:
        self._connection = connection
        self._offered = offered
        self._is_refused = False  # Triton does not take our key

    async def snapshot(self, adapters: Mapping[str, tuple[str, ...]]) -> ModelSnapshot:
        """Return what is served at this moment: the ensembles that carry our parameters.

        Args:
            adapters: by slug: those that an engine named last, which may be others than those that were built in.

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
        served = await asyncio.gather(
            *(self._served_model(name, adapters.get(name)) for name, state in ensembles.items() if state == _READY)
        )
        return ModelSnapshot(
            ready={model.id: model for model in served if model is not None},
            unready={
                slug_to_model_id(name): state.lower()
                for name, state in ensembles.items()
                if state not in (_READY, "")  # "": never loaded, so nobody means to serve it
            },
        )

    async def slugs(self) -> set[str]:
        """Return the slugs of all models that could be loaded.

        Raises:
            APIError: Triton did not answer.
        """
        return set(self._ensembles_of(await self._states()))

    async def unload(self, name: str) -> None:
        """Unload a stage or an ensemble, by its Triton name.

        Raises:
            APIError: Triton did not do it.
        """
        await self._ask("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=name))

    async def load(self, slug: str, stage: str) -> None:
        """Load a stage and the ensembles that stand on it; return when the model is ready.

        Raises:
            APIError: Triton did not do it.
        """
        await self._load(stage)
        # Triton has loaded those anew that it served before. Asked to load one that is ready, it would load anew each
        # of its other stages whose folder has changed, if only by what Python keeps of a compiled model.py: the engine.
        states = await self._states()
        for name in (stage_name(slug, each) for each in ENSEMBLES):
            if states.get(name) != _READY:
                await self._load(name)

    async def _load(self, name: str) -> None:
        await self._ask("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=name), _LOAD_TIMEOUT_S)

    def _ensembles_of(self, states: Mapping[str, str]) -> dict[str, str]:
        """Return the state of each ensemble that is offered, by its name."""
        return {
            name: state
            for name, state in states.items()
            if slug_of_stage(name) == name and slug_to_model_id(name) in self._offered
        }

    async def _states(self) -> dict[str, str]:
        """Return the state of each stage and ensemble.

        Raises:
            TritonKeyRefused: the index is a restricted API.
        """
        index = await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return {entry.name: entry.state for entry in index.models}

    async def _ready_states(self) -> dict[str, str]:
        """Return the same of the ready ones only. The statistics name them, and are open to everybody."""
        statistics = await unary(self._connection.stub.ModelStatistics, service_pb2.ModelStatisticsRequest())
        return {entry.name: _READY for entry in statistics.model_stats}

    async def _ask(self, method: str, request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
        """Call a restricted API."""
        return await unary(getattr(self._connection.stub, method), request, timeout_s, self._connection.key_metadata)

    async def _served_model(self, slug: str, adapters: tuple[str, ...] | None) -> ServedModel | None:
        """Return an ensemble as the model that it serves; None for what is not ours, or is gone already."""
        with contextlib.suppress(NotFound, ModelNotReady):
            answer = await unary(self._connection.stub.ModelConfig, service_pb2.ModelConfigRequest(name=slug))
            return _model_of(slug, answer.config, adapters)
        return None


def _model_of(slug: str, config: Any, adapters: tuple[str, ...] | None) -> ServedModel | None:
    if config.platform != "ensemble":
        return None
    texts = {name: value.string_value for name, value in config.parameters.items()}
    parameters = ModelParameters.from_parameters(texts)
    if parameters is not None and adapters is not None:
        parameters = dataclasses.replace(parameters, adapters=adapters)
    return None if parameters is None else ServedModel(slug=slug, parameters=parameters)
