"""Counts the functions that one streamed chat request passes: `python -m tests.workshop.request_path`.

The three stages, the frontend and a client run in this process. The server between them hands each message to the next
stage, as Triton does for an ensemble. Python says which functions of ours ran between the request and the last byte of
its answer. A function counts whole, without its decorators, and a function inside another one is part of it. So does a
message: a class that is read for its fields.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import aiohttp
import grpc.aio
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from build_engines.__main__ import main as build_engines
from frontend.server import app_runner
from frontend.settings import Settings
from model_repository.contract.tensors import KEY_VARIABLE
from tests.grpc_messages import infer_response, tensors_from_request
from tests.launching import KEY_OF_ALL
from tests.model_repository.python_backend import BACKEND, Request

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("frontend", "model_repository")
ENSEMBLE = "demo"
QUESTION = "What is the capital of France?"
# Functions that run beside a request: they would come and go with the clock.
_BACKGROUND = re.compile(
    r"frontend/triton/(health_monitor|replica|health_checks|models|repository|channel)\.py|frontend/loop_time\.py"
    r"|engine/metrics\.py|model_repository/model_parameters\.py|\.snapshot$"
    r"|\.engine_stats$|\._control$|one_response|\.note_engine$|_begin_at_zero|Metrics\.set$|CustomMetric|\.stats$|_num_unloading$"
)
# Functions that hand the request, or its output, to whatever comes next. The spine is their callers and themselves.
HAND_OVERS = (
    "frontend/protocol/reading.py:parse",
    "frontend/translate/requests.py:chat_to_requests",
    "frontend/triton/call.py:MultiplexedCall.send",
    "frontend/triton/messages.py:infer_request",
    "model_repository/contract/codec.py:pack",
    "model_repository/contract/codec.py:unpack",
    "model_repository/tokenizer/chat_template.py:ChatTemplate.render",
    "model_repository/tokenizer/vocabulary.py:Vocabulary.encode",
    "model_repository/engine/inbox.py:Inbox.put",
    "model_repository/engine/llama_cpp/runtime.py:LlamaCppRuntime.submit",
    "model_repository/engine/llama_cpp/context.py:Context.compute",
    "model_repository/engine/stop_buffer.py:StopBuffer.push",
    "model_repository/engine/output_streams.py:OutputStream.add",
    "model_repository/python_backend.py:TritonResponder.send",
    "model_repository/detokenizer/text.py:delta_to_chunk",
    "frontend/triton/chunk_queue.py:ChunkQueue.put",
    "frontend/triton/chunk_queue.py:ChunkQueue.get",
    "frontend/translate/sse.py:event",
)
MESSAGES = (
    "frontend/protocol/chat.py:ChatCompletionRequest",
    "frontend/protocol/chat.py:ChatMessage",
    "frontend/protocol/fields.py:GenerationBody",
    "model_repository/contract/request.py:Params",
    "model_repository/contract/request.py:SamplingParams",
    "model_repository/contract/request.py:ChatPrompt",
    "model_repository/contract/request.py:GenerationRequest",
    "model_repository/contract/request.py:EngineRequest",
    "model_repository/contract/request.py:RequestBatch",
    "model_repository/contract/request.py:EngineRequestBatch",
    "model_repository/contract/output.py:TokenDelta",
    "model_repository/contract/output.py:OutputBatch",
    "model_repository/contract/output.py:GenerationChunk",
    "model_repository/contract/output.py:ChunkBatch",
)


@dataclass(frozen=True, slots=True, order=True)
class Definition:
    """A function, or a message without its methods."""

    path: str  # from the root of the repository
    name: str
    num_lines: int

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@functools.cache
def definitions_in(path: str) -> dict[int, tuple[Definition, int]]:
    """Return the definitions of a file by the line of their first decorator, each with the line of the outermost one.

    A function inside a function has the line of that one.
    """
    found: dict[int, tuple[Definition, int]] = {}

    def visit(node: ast.AST, names: tuple[str, ...], outer: int | None) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                visit(child, names, outer)
                continue
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            is_class = isinstance(child, ast.ClassDef)
            num_lines = _num_lines(child)
            if is_class:
                num_lines -= sum(_num_lines(each) for each in child.body if isinstance(each, ast.FunctionDef))
            name = ".".join([*names, child.name])
            found[first] = Definition(path, name, num_lines), outer or first
            visit(child, (*names, child.name), None if is_class else outer or first)

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8")), (), None)
    return found


def _num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def definition(place: str) -> Definition:
    """Return the definition that a place names, PATH:NAME."""
    path, _, name = place.partition(":")
    return next(each for each, _ in definitions_in(path).values() if each.name == name)


# --- Triton, in this process ------------------------------------------------------------------------------------------


class InProcessTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Runs the stages of a rendered repository, and passes messages from one to the next."""

    def __init__(self, repository: pathlib.Path) -> None:
        self._configs = {
            path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
            for path in repository.glob("*/config.pbtxt")
        }
        self._stages = {name: self._load(name) for name in ("tokenizer", "engine", "detokenizer")}

    def _load(self, stage: str) -> Any:
        name = f"{ENSEMBLE}__{stage}"
        spec = importlib.util.spec_from_file_location(name, ROOT / "model_repository" / stage / "1" / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        parameters = self._configs[name].parameters
        texts = {key: {"string_value": parameters[key].string_value} for key in parameters}
        model = module.TritonPythonModel()
        model.initialize({"model_name": name, "model_config": json.dumps({"parameters": texts})})
        return model

    def finalize(self) -> None:
        """Unload the stages."""
        for stage in self._stages.values():
            stage.finalize()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Pass each request on; responses come in whatever order."""
        loop, responses = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def respond(response: Any) -> None:
            message = service_pb2.ModelStreamInferResponse(
                error_message=response.error.message if response.error else ""
            )
            if not response.error:
                tensors = {tensor.name(): tensor.as_numpy() for tensor in response.tensors}
                message.infer_response.CopyFrom(infer_response(tensors))
            loop.call_soon_threadsafe(responses.put_nowait, message)

        async def pass_on() -> None:
            async for request in requests:
                self._run(request.model_name.removeprefix(f"{ENSEMBLE}__"), tensors_from_request(request), respond)

        passing = asyncio.create_task(pass_on())
        try:
            while True:
                yield await responses.get()
        finally:
            passing.cancel()

    def _run(self, name: str, tensors: Mapping[str, Any], respond: Callable[[Any], None]) -> None:
        match name:
            case "requests":
                [encoded] = self._stages["tokenizer"].execute([Request(tensors)])
                self._execute("engine", encoded, respond)
            case "outputs":
                detokenize = functools.partial(self._execute, "detokenizer", respond=respond)
                self._stages["engine"].execute([Request(tensors, on_response=detokenize)])
            case _:
                self._stages[name].execute([Request(tensors, on_response=respond)])

    def _execute(self, stage: str, before: Any, respond: Callable[[Any], None]) -> None:
        if before.error:
            respond(before)
        else:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in before.tensors}
            self._stages[stage].execute([Request(tensors, on_response=respond)])

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        answer = service_pb2.RepositoryIndexResponse()
        for name in self._configs:
            answer.models.add(name=name, version="1", state="READY")
        return answer

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelStatisticsResponse(
            model_stats=[service_pb2.ModelStatistics(name=name, version="1") for name in self._configs]
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=self._configs[request.name])


# --- the count --------------------------------------------------------------------------------------------------------


class Path:
    """The functions that begin while it is observed, in whatever thread."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._spine: set[CodeType] = set()
        self._hand_overs = {(str(ROOT / each.partition(":")[0]), each.partition(":")[2]) for each in HAND_OVERS}

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Note the functions that begin meanwhile."""
        monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "request path")
        monitoring.register_callback(tool, monitoring.events.PY_START, self._note)
        monitoring.set_events(tool, monitoring.events.PY_START)
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    def _note(self, code: CodeType, offset: int) -> None:
        self._codes.add(code)
        if (code.co_filename, code.co_qualname) in self._hand_overs:
            frame = sys._getframe(1)
            while frame is not None:
                self._spine.add(frame.f_code)
                frame = frame.f_back  # type: ignore[assignment]

    @property
    def full(self) -> list[Definition]:
        """Every function, and the messages."""
        return sorted(_definitions_of(self._codes) | set(map(definition, MESSAGES)))

    @property
    def spine(self) -> list[Definition]:
        """The functions that hand something over, and their callers."""
        return sorted(_definitions_of(self._spine))


def _definitions_of(codes: set[CodeType]) -> set[Definition]:
    found = set[Definition]()
    for code in codes:
        path = code.co_filename.removeprefix(f"{ROOT}/")
        known = definitions_in(path) if path.partition("/")[0] in PACKAGES else {}
        if code.co_firstlineno in known:  # else a lambda, or the body of a comprehension
            found.add(known[known[code.co_firstlineno][1]][0])
    return {each for each in found if not _BACKGROUND.search(str(each))}


async def path_of_one_chat(repository: pathlib.Path) -> Path:
    """Return the path of one streamed chat through a frontend and the stages of a repository."""
    sys.modules["triton_python_backend_utils"] = BACKEND  # type: ignore[assignment]
    os.environ[KEY_VARIABLE] = KEY_OF_ALL
    os.chdir(repository.parent)  # for the sockets of the stages
    triton = InProcessTriton(repository)
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    runner = app_runner(Settings(triton_endpoints=(f"127.0.0.1:{port}",)))
    await runner.setup()
    [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
    path = Path()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        await _chat(session, "Count from 1 to 3.")
        with path.observed():
            answer = await _chat(session, QUESTION)
    assert answer.endswith(b"data: [DONE]\n\n") and b"Paris" in answer, answer
    await runner.cleanup()
    await server.stop(None)
    triton.finalize()
    return path


async def _chat(session: aiohttp.ClientSession, question: str) -> bytes:
    body = {"model": ENSEMBLE, "stream": True, "messages": [{"role": "user", "content": question}]}
    async with session.post("/v1/chat/completions", json=body) as response:
        return await response.read()


def reading_list() -> list[Definition]:
    """Return the functions that docs/request-path.md names, in its order."""
    text = (ROOT / "docs" / "request-path.md").read_text(encoding="utf-8")
    return list(map(definition, re.findall(r"`((?:frontend|model_repository)/[\w/]+\.py:[\w.]+)`", text)))


def total(path: list[Definition]) -> str:
    """Return the size of a path in words."""
    num_files = len({each.path for each in path})
    return f"{len(path)} functions and messages, {num_files} files, {sum(each.num_lines for each in path)} lines"


def main() -> None:
    """Print the path, by file, with a star for the spine, and its size."""
    with tempfile.TemporaryDirectory() as folder:
        assert build_engines(["build", ENSEMBLE, "--home", folder]) == 0
        path = asyncio.run(path_of_one_chat(pathlib.Path(folder) / "repository"))
    spine = set(path.spine)
    for name, group in itertools.groupby(path.full, key=lambda each: each.path):
        print(name)  # noqa: T201
        for each in group:
            print(f"  {each.num_lines:4} {each.name}{' *' if each in spine else ''}")  # noqa: T201
    for title, part in (("full path", path.full), ("spine", path.spine), ("reading list", reading_list())):
        print(f"{title}: {total(part)}")  # noqa: T201


if __name__ == "__main__":
    main()
