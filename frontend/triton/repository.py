"""Triton's repository of models, over gRPC: what is in it and what is served, loading and unloading."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Container, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from frontend.errors import ModelNotReady, NotFound
from frontend.models import ModelSnapshot, ServedModel
from frontend.triton.channel import Connection, unary
from model_repository import contract
from model_repository.model_parameters import ModelParameters

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

    async def snapshot(self, adapters: Mapping[str, tuple[str, ...]]) -> ModelSnapshot:
        """Return what is served at this moment: the ensembles that carry our parameters.

        Args:
            adapters: by slug: those that an engine named last, which may be others than those that were built in.

        Raises:
            APIError: Triton did not answer.
        """
        ensembles = await self._ensembles()
        served = await asyncio.gather(
            *(self._served_model(name, adapters.get(name)) for name, state in ensembles.items() if state == _READY)
        )
        return ModelSnapshot(
            ready={model.id: model for model in served if model is not None},
            unready={
                contract.slug_to_model_id(name): state.lower()
                for name, state in ensembles.items()
                if state not in (_READY, "")  # "": never loaded, so nobody means to serve it
            },
        )

    async def slugs(self) -> set[str]:
        """Return the slugs of all models that could be loaded.

        Raises:
            APIError: Triton did not answer.
        """
        return set(await self._ensembles())

    async def unload(self, name: str) -> None:
        """Unload a stage or an ensemble, by its Triton name.

        Raises:
            APIError: Triton did not do it.
        """
        await unary(
            self._connection.stub.RepositoryModelUnload, service_pb2.RepositoryModelUnloadRequest(model_name=name)
        )

    async def load(self, slug: str, stage: str) -> None:
        """Load a stage and the ensembles that stand on it; return when the model is ready.

        Raises:
            APIError: Triton did not do it.
        """
        await self._load(stage)
        # Triton has loaded those anew that it served before. Asked to load one that is ready, it would load anew each
        # of its other stages whose folder has changed, if only by what Python keeps of a compiled model.py: the engine.
        states = await self._states()
        for name in (slug, contract.stage_name(slug, contract.DELIVERIES)):
            if states.get(name) != _READY:
                await self._load(name)

    async def _load(self, name: str) -> None:
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        await unary(self._connection.stub.RepositoryModelLoad, request, _LOAD_TIMEOUT_S)

    async def _ensembles(self) -> dict[str, str]:
        """Return the state of each ensemble that is offered, by its name."""
        return {
            name: state
            for name, state in (await self._states()).items()
            if contract.slug_of_stage(name) == name and contract.slug_to_model_id(name) in self._offered
        }

    async def _states(self) -> dict[str, str]:
        index = await unary(self._connection.stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        return {entry.name: entry.state for entry in index.models}

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
