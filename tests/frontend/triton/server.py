"""A small gRPC server that speaks Triton's protocol and does what a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.triton import restricted
from model_repository.contract.codec import pack, unpack
from model_repository.contract.output import Announcement, Chunk, ChunkBatch, VectorChunk
from model_repository.contract.request import (
    DetokenizeRequest,
    GenerationRequest,
    RequestBatch,
    TokenizeAnswer,
    TokenizeRequest,
)
from model_repository.contract.signature import SIGNATURE_BYTES
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import (
    ARBITER,
    CHUNK_BATCH,
    CONTROL,
    DETOKENIZE,
    ENGINE_REQUESTS,
    OPEN_STREAM,
    REQUEST_BATCH,
    REQUESTS,
    STATS,
    TOKENIZE,
    TOKENS,
    ensemble_of_stage,
    stage_name,
)
from model_repository.errors import OutputStreamNotOpen
from tests.fakes import stats

_FINAL = "triton_final_response"


def infer_response(spec: TensorSpec, *payloads: bytes) -> Any:
    """Return a response with these texts in one output."""
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name=spec.name, datatype="BYTES", shape=(1, len(payloads)))
    response.raw_output_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in payloads))
    return response


def infer_message(spec: TensorSpec, payload: bytes) -> Any:
    """Return a message of a stream with this text in one output."""
    return service_pb2.ModelStreamInferResponse(infer_response=infer_response(spec, payload))


def _refusal(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


def text_of(request: Any, spec: TensorSpec) -> bytes:
    """Return the only input of a request, which is one text, as a stage reads it."""
    [sent], [raw] = request.inputs, request.raw_input_contents
    assert (sent.name, sent.datatype, list(sent.shape)) == (spec.name, "BYTES", [1, 1])
    assert len(raw) == 4 + int.from_bytes(raw[:4], "little")
    text: bytes = raw[4:]
    return text


type Script = list[Chunk | Announcement | str | asyncio.Event]


class SentBatch(NamedTuple):
    """A message of requests, as it came."""

    model_name: str
    message_id: str
    numbers: list[int]
    requests: list[GenerationRequest]


class OutputStream:
    """An output stream that is open."""

    def __init__(self) -> None:
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()  # for whatever reason
        self._serial = 0
        self._plays: set[asyncio.Task[None]] = set()

    def begin(self, number: int, script: Script) -> None:
        """Play the script of a request until the stream ends."""
        self._plays.add(asyncio.get_running_loop().create_task(self._play(number, script)))

    async def _play(self, number: int, script: Script) -> None:
        for item in script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                self.put((number, item))

    def note_end(self) -> None:
        """Note that it has ended, and end the plays."""
        self.ended.set()
        for play in self._plays:
            play.cancel()

    def put(self, *items: tuple[int, Chunk | Announcement | str], num_lost: int = 0, is_last: bool = False) -> None:
        """Send an output batch, after some that are lost. The last one ends the stream."""
        self._serial += num_lost
        vectors = tuple((number, item) for number, item in items if isinstance(item, VectorChunk))
        others = tuple((number, item) for number, item in items if not isinstance(item, VectorChunk))
        response = infer_message(CHUNK_BATCH, pack(ChunkBatch(self._serial, others, vectors)))
        response.infer_response.parameters[_FINAL].bool_param = is_last
        self._serial += 1
        self.responses.put_nowait(response)

    def fail(self, message: str) -> None:
        """Send an error."""
        self.responses.put_nowait(_refusal(message))

    def end(self) -> None:
        """End it."""
        self.responses.put_nowait(None)


class FakeTritonServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays a script for each request: chunks are sent, texts are error messages, events are waited for.

    Each chunk and each error is an output batch of the stream that the request names. `refusal` answers a whole
    message of requests.
    """

    output_stream = OutputStream

    def __init__(self) -> None:
        self.script: Script | Callable[[GenerationRequest], Script] = []  # or what returns a request's
        self.refusal = ""  # the error of each message of requests
        self.take = asyncio.Event()  # until then no message of requests is taken
        self.take.set()
        self.opening: Script = []  # played before an output stream is open; a text ends it
        self.streams: dict[str, OutputStream] = {}  # that are open, by key
        self.num_opened = 0
        self.opened = asyncio.Event()  # an output stream was asked for
        self.batches: list[SentBatch] = []
        self.started = asyncio.Event()  # a message of requests has come
        self.num_calls = self.num_ended = self.num_cancelled = 0  # of ModelStreamInfer
        self.half_closed = asyncio.Event()  # one of them, with messages of requests
        self.models_called: list[set[str]] = []  # by each of them
        self.controls: asyncio.Queue[Any] = asyncio.Queue()
        self.is_engine_silent = False
        self.answers_controls = asyncio.Event()
        self.answers_controls.set()
        self.epoch = 7
        self.adapters: dict[str, str] = {}
        self.garbage = ""  # in place of an engine's stats
        self.is_detokenizer_silent = False
        self.tokenized: list[tuple[str, TokenizeRequest | DetokenizeRequest | RequestBatch]] = []
        self.tokenizer_answer: Any = TokenizeAnswer((), ())  # a text is an error message, a response is sent as it is
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
            self.num_ended += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        finally:
            answering.cancel()

    async def _answer_all(self, requests: Any, responses: asyncio.Queue[Any]) -> None:
        models: set[str] = set()
        self.models_called.append(models)
        try:
            async with asyncio.TaskGroup() as tasks:
                async for request in requests:
                    models.add(request.model_name)
                    tasks.create_task(self._answer(request, responses))
                if any(stage_name(ensemble_of_stage(model), REQUESTS) == model for model in models):
                    self.half_closed.set()
        finally:
            responses.put_nowait(None)

    async def _answer(self, request: Any, responses: asyncio.Queue[Any]) -> None:
        """Answer a request as Triton does: with its id, errors too."""
        async for response in self._responses(request):
            if not isinstance(response, bytes):  # which a test sends in place of a message
                response.infer_response.id = request.id
            responses.put_nowait(response)

    async def _responses(self, request: Any) -> AsyncIterator[Any]:
        match request.model_name.partition("__")[2]:
            case "engine" if request.inputs[0].name == OPEN_STREAM.name:
                async for response in self._outputs(request):
                    yield response
            case "engine":
                if self.is_engine_silent:
                    await asyncio.Event().wait()
                answer = self._control(request)
                await self.answers_controls.wait()
                yield infer_message(STATS, answer)
            case "detokenizer":
                if not self.is_detokenizer_silent:
                    yield infer_message(CHUNK_BATCH, pack(ChunkBatch(0)))
            case "outputs":
                async for response in self._outputs(request):
                    yield response
            case "requests":
                if refusal := await self._take(request):
                    yield _refusal(refusal)
            case _:
                yield _refusal(f"Request for unknown model: '{request.model_name}' is not found")

    @property
    def requests(self) -> list[GenerationRequest]:
        """All requests that have come."""
        return [request for batch in self.batches for request in batch.requests]

    async def _outputs(self, request: Any) -> AsyncIterator[Any]:
        """Open an output stream."""
        self.num_opened += 1
        self.opened.set()
        for item in self.opening:
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                assert isinstance(item, str)
                yield _refusal(item)
                return
        key = text_of(request, OPEN_STREAM).decode()
        stream = self.streams[key] = self.output_stream()
        stream.put()
        try:
            while (response := await stream.responses.get()) is not None:
                yield response
                if not isinstance(response, bytes) and response.infer_response.parameters[_FINAL].bool_param:
                    return
        finally:
            self.streams.pop(key, None)
            stream.note_end()
        if request.parameters["triton_enable_empty_final_response"].bool_param:
            response = service_pb2.ModelStreamInferResponse()
            response.infer_response.parameters[_FINAL].bool_param = True
            yield response

    async def _take(self, message: Any) -> str:
        """Take the requests of a message, or return why not."""
        batch = unpack(RequestBatch, text_of(message, REQUEST_BATCH), REQUEST_BATCH.name)
        numbers, requests = [number for number, _ in batch.items], [each for _, each in batch.items]
        self.batches.append(SentBatch(message.model_name, message.id, numbers, requests))
        self.started.set()
        await self.take.wait()
        if self.refusal:
            return self.refusal
        if batch.stream not in self.streams:
            return OutputStreamNotOpen("no stream", REQUEST_BATCH.name).message()
        for number, request in batch.items:
            script = self.script(request) if callable(self.script) else self.script
            self.streams[batch.stream].begin(number, script)
        return ""

    def _control(self, request: Any) -> bytes:
        if command := json.loads(text_of(request, CONTROL)):  # the others only ask for the stats
            self.controls.put_nowait((request.model_name, command))
        answer = msgspec.structs.replace(stats(self.epoch), adapters=self.adapters)
        return self.garbage.encode() or msgspec.json.encode(answer)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        asked: TokenizeRequest | DetokenizeRequest | RequestBatch
        if request.model_name == ARBITER:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{ARBITER}' is not found")
        if request.inputs[0].name == TOKENIZE.name:
            asked = unpack(TokenizeRequest, text_of(request, TOKENIZE), TOKENIZE.name)
        elif request.inputs[0].name == DETOKENIZE.name:
            asked = unpack(DetokenizeRequest, text_of(request, DETOKENIZE), DETOKENIZE.name)
        else:
            asked = unpack(RequestBatch, text_of(request, REQUEST_BATCH), REQUEST_BATCH.name)
        self.tokenized.append((request.model_name, asked))
        match self.tokenizer_answer:
            case str(message):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
            case msgspec.Struct() as answer:
                if isinstance(answer, TokenizeAnswer):
                    return infer_response(TOKENS, pack(answer))
                return infer_response(ENGINE_REQUESTS, bytes(SIGNATURE_BYTES) + pack(answer))
            case response:
                return response

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
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    streams = grpc.stream_stream_rpc_method_handler(
        servicer.ModelStreamInfer,
        request_deserializer=service_pb2.ModelInferRequest.FromString,
        response_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
    )
    # It comes before the generated handler, which sends no bytes that are no message.
    service = "inference.GRPCInferenceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"ModelStreamInfer": streams}),))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    address = f"{host}:{port}"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    return server, port
