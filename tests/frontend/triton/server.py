"""A small gRPC server that speaks Triton's protocol and does what a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.triton.messages import infer_request
from model_repository import contract
from model_repository.chunk_tensors import chunk_to_tensors
from model_repository.generation import GenerationChunk
from model_repository.tensors import array
from tests.fakes import stats

_INPUTS = {spec.name: spec for stage in contract.STAGES.values() for spec in stage.inputs}
_OUTPUTS = {spec.name: spec for stage in contract.STAGES.values() for spec in stage.outputs}

type Tensors = Mapping[str, npt.NDArray[Any]]


def infer_response(tensors: Tensors) -> Any:
    """Return a response with these outputs."""
    response = service_pb2.ModelInferResponse()
    for name, tensor in tensors.items():
        response.outputs.add(name=name, datatype=_OUTPUTS[name].datatype, shape=tensor.shape)
        response.raw_output_contents.append(infer_request("x", {"text_input": tensor}).raw_input_contents[0])
    return response


def tensors_of(request: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a request as a stage sees them."""
    tensors = {}
    for sent, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if sent.datatype == "BYTES":
            items = []
            while raw:
                end = 4 + int.from_bytes(raw[:4], "little")
                items.append(raw[4:end])
                raw = raw[end:]
            tensors[sent.name] = np.array(items, dtype=np.object_).reshape(sent.shape)
        else:
            tensors[sent.name] = np.frombuffer(raw, _INPUTS[sent.name].dtype).reshape(sent.shape)
    return tensors


class FakeTritonServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays a script for each call of an ensemble: chunks are sent, texts are error messages, events are waited for."""

    def __init__(self) -> None:
        self.script: list[GenerationChunk | str | asyncio.Event] = []
        self.requests: list[Any] = []  # of ensembles
        self.started = asyncio.Event()
        self.ended = asyncio.Event()  # the call of an ensemble ended, for whatever reason
        self.controls: asyncio.Queue[Any] = asyncio.Queue()
        self.is_engine_silent = False
        self.detokenized: list[Tensors] = []
        self.tokenized: list[tuple[str, Tensors]] = []
        self.answer_to_tokenize: Tensors | str = {}  # a text is an error message
        self.index: list[tuple[str, str]] = [("demo", "READY"), ("demo__engine", "READY")]
        self.configs: dict[str, tuple[str, Mapping[str, str]]] = {}
        self.repository_calls: list[str] = []

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            if request.model_name.endswith("__engine"):
                if self.is_engine_silent:
                    await asyncio.Event().wait()
                yield service_pb2.ModelStreamInferResponse(infer_response=self._control(request))
            elif request.model_name.endswith("__detokenizer"):
                self.detokenized.append(tensors_of(request))
                async for response in self._play():
                    yield response
            else:
                self.requests.append(request)
                self.started.set()
                try:
                    async for response in self._play():
                        yield response
                finally:
                    self.ended.set()

    async def _play(self) -> AsyncIterator[Any]:
        for item in self.script:
            match item:
                case GenerationChunk():
                    response = infer_response(chunk_to_tensors(item))
                    yield service_pb2.ModelStreamInferResponse(infer_response=response)
                case str():
                    yield service_pb2.ModelStreamInferResponse(error_message=item)
                case _:
                    await item.wait()

    def _control(self, request: Any) -> Any:
        (payload,) = tensors_of(request)["control"].reshape(-1)
        self.controls.put_nowait((request.model_name, json.loads(payload)))
        return infer_response({"stats": array(contract.STATS, stats(7).to_json())})

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.tokenized.append((request.model_name, tensors_of(request)))
        if not isinstance(self.answer_to_tokenize, str):
            return infer_response(self.answer_to_tokenize)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.answer_to_tokenize)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        answer = service_pb2.RepositoryIndexResponse()
        for name, state in self.index:
            answer.models.add(name=name, version="1", state=state)
        return answer

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        if request.name not in self.configs:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        platform, parameters = self.configs[request.name]
        answer = service_pb2.ModelConfigResponse()
        answer.config.platform = platform
        for name, value in parameters.items():
            answer.config.parameters[name].string_value = value
        return answer

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self.repository_calls.append(f"unload {request.model_name}")
        return service_pb2.RepositoryModelUnloadResponse()

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self.repository_calls.append(f"load {request.model_name}")
        return service_pb2.RepositoryModelLoadResponse()


async def listen(servicer: FakeTritonServer, port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Serve on loopback; return what stops it, and the port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port
