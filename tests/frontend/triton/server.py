"""A small gRPC server that speaks Triton's protocol and does what a test tells it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.triton import restricted
from frontend.triton.messages import infer_request
from model_repository import contract
from model_repository.chunk_tensors import chunk_to_tensors
from model_repository.deliveries import DeliveredChunks
from model_repository.errors import DeliveriesNotOpen
from model_repository.generation import GenerationChunk
from model_repository.tensors import array, text
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


def _response(tensors: Tensors) -> Any:
    return service_pb2.ModelStreamInferResponse(infer_response=infer_response(tensors))


def _refusal(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


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


type Script = list[GenerationChunk | str | asyncio.Event]


class Stream:
    """A stream of deliveries that is open."""

    def __init__(self) -> None:
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()  # for whatever reason
        self._serial = 0

    def put(self, *items: tuple[int, GenerationChunk | str], num_lost: int = 0) -> None:
        """Send a delivery, after some that are lost."""
        self._serial += num_lost
        tensors = DeliveredChunks(self._serial, items).to_tensors()
        self._serial += 1
        self.responses.put_nowait(_response(tensors))

    def fail(self, message: str) -> None:
        """Send an error."""
        self.responses.put_nowait(_refusal(message))

    def end(self) -> None:
        """End it."""
        self.responses.put_nowait(None)


class FakeTritonServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays a script for each request of an ensemble: chunks are sent, texts are error messages, events are waited for.

    Each is a delivery to the stream that the request names. `refusal` answers the request itself.
    """

    def __init__(self) -> None:
        self.script: Script = []
        self.refusal = ""  # what a request is answered with
        self.take = asyncio.Event()  # until then no request is taken
        self.take.set()
        self.opening: Script = []  # played before a stream of deliveries is open; a text ends it
        self.streams: dict[str, Stream] = {}  # that are open, by key
        self.num_opened = 0
        self.opened = asyncio.Event()  # a stream of deliveries was asked for
        self.requests: list[Any] = []  # of ensembles
        self.started = asyncio.Event()
        self.num_calls = 0  # of streams
        self.half_closed = asyncio.Event()  # one of them
        self._tasks: set[asyncio.Task[None]] = set()
        self.controls: asyncio.Queue[Any] = asyncio.Queue()
        self.is_engine_silent = False
        self.epoch = 7
        self.adapters: dict[str, str] = {}
        self.garbage = ""  # in place of an engine's stats
        self.detokenized: list[Tensors] = []
        self.tokenized: list[tuple[str, Tensors]] = []
        self.ids: list[str] = []  # of requests to tokenizers
        self.answer_to_tokenize: Tensors | str = {}  # a text is an error message
        self.index: list[tuple[str, str]] = [("demo", "READY"), ("demo__engine", "READY")]
        self.configs: dict[str, tuple[str, Mapping[str, str]]] = {}
        self.repository_calls: list[str] = []
        self.key = ""  # to the restricted APIs; empty: they are open

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Answer the requests of a call at a time, until there are no more and all have been answered."""
        responses: asyncio.Queue[Any] = asyncio.Queue()
        self.num_calls += 1
        answering = asyncio.create_task(self._answer_all(requests, responses))
        try:
            while (response := await responses.get()) is not None:
                yield response
        finally:
            answering.cancel()

    async def _answer_all(self, requests: Any, responses: asyncio.Queue[Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                tasks.create_task(self._answer(request, responses))
            self.half_closed.set()
        responses.put_nowait(None)

    async def _answer(self, request: Any, responses: asyncio.Queue[Any]) -> None:
        """Answer a request as Triton does: with its id, errors too."""
        async for response in self._responses(request):
            response.infer_response.id = request.id
            responses.put_nowait(response)

    async def _responses(self, request: Any) -> AsyncIterator[Any]:
        if request.model_name.endswith("__engine"):
            if self.is_engine_silent:
                await asyncio.Event().wait()
            yield _response(self._control(request))
        elif request.model_name.endswith("__detokenizer"):
            self.detokenized.append(tensors_of(request))
            for item in self.script:
                assert not isinstance(item, asyncio.Event)
                yield _refusal(item) if isinstance(item, str) else _response(chunk_to_tensors(item))
        elif request.model_name.endswith("__deliveries"):
            async for response in self._deliver(request):
                yield response
        else:
            self.requests.append(request)
            self.started.set()
            inputs = tensors_of(request)
            await self.take.wait()
            if refusal := self._take(text(inputs, contract.DELIVERY_KEY), inputs):
                yield _refusal(refusal)

    async def _deliver(self, request: Any) -> AsyncIterator[Any]:
        """Open a stream of deliveries."""
        self.num_opened += 1
        self.opened.set()
        for item in self.opening:
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                assert isinstance(item, str)
                yield _refusal(item)
                return
        key = text(tensors_of(request), contract.OPEN_DELIVERIES)
        stream = self.streams[key] = Stream()
        stream.put()
        try:
            while (response := await stream.responses.get()) is not None:
                yield response
        finally:
            self.streams.pop(key, None)
            stream.ended.set()
        if request.parameters["triton_enable_empty_final_response"].bool_param:
            response = service_pb2.ModelStreamInferResponse()
            response.infer_response.parameters["triton_final_response"].bool_param = True
            yield response

    def _take(self, key: str, inputs: Tensors) -> str:
        """Take a request whose chunks are delivered, or return why not."""
        if self.refusal:
            return self.refusal
        if key not in self.streams:
            return DeliveriesNotOpen("no stream", "delivery_key").message()
        number = inputs[contract.DELIVERY_NUMBER.name].item()
        task = asyncio.get_running_loop().create_task(self._deliver_script(self.streams[key], number, self.script))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ""

    async def _deliver_script(self, stream: Stream, number: int, script: Script) -> None:
        for item in script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                stream.put((number, item))

    def _control(self, request: Any) -> Tensors:
        (payload,) = tensors_of(request)["control"].reshape(-1)
        if command := json.loads(payload):  # the others only ask for the stats
            self.controls.put_nowait((request.model_name, command))
        answer = dataclasses.replace(stats(self.epoch), adapters=self.adapters)
        return {"stats": array(contract.STATS, self.garbage or answer.to_json())}

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.tokenized.append((request.model_name, tensors_of(request)))
        self.ids.append(request.id)
        if not isinstance(self.answer_to_tokenize, str):
            return infer_response(self.answer_to_tokenize)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.answer_to_tokenize)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        await self._require_key(context)
        answer = service_pb2.RepositoryIndexResponse()
        for name, state in self.index:
            answer.models.add(name=name, version="1", state=state)
        return answer

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelStatisticsResponse()
        for name, state in self.index:
            if state == "READY":
                answer.model_stats.add(name=name, version="1")
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
        await self._require_key(context)
        self.repository_calls.append(f"unload {request.model_name}")
        return service_pb2.RepositoryModelUnloadResponse()

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        await self._require_key(context)
        self.repository_calls.append(f"load {request.model_name}")
        return service_pb2.RepositoryModelLoadResponse()

    async def _require_key(self, context: Any) -> None:
        if self.key and (restricted.METADATA, self.key) not in context.invocation_metadata():
            details = f"This protocol is restricted, expecting header '{restricted.METADATA}'"
            await context.abort(grpc.StatusCode.UNAVAILABLE, details)


async def listen(
    servicer: FakeTritonServer, port: int = 0, host: str = "127.0.0.1", credentials: Any = None
) -> tuple[grpc.aio.Server, int]:
    """Serve on loopback, with credentials over TLS; return what stops it, and the port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    address = f"{host}:{port}"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    return server, port
