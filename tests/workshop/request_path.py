"""Measures the functions that one request passes, and writes those of a streamed chat into docs/request-path.md.

`python -m tests.workshop.request_path WALK` measures a streamed chat (`chat`), a streamed Messages request (`messages`)
or an embedding (`embeddings`). It prints the figures of the walk: functions, lines, files, and returns. A return is a
step into a file that the path has left before. `--list` prints each function, with a star for the spine; `--write`
writes the page.

The stages, the frontend and a client run in this process. The server between them hands each message to the next
stage, as Triton does for an ensemble. Python says which functions of ours ran between the request and the last byte of
its answer. A function counts whole, without its decorators, and a function inside another one is part of it. So does a
message: a class that is read for its fields.
"""

from __future__ import annotations

import argparse
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
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
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
from model_repository.contract.tensors import ARBITER, KEY_VARIABLE, LOADERS
from tests.grpc_messages import infer_response, tensors_from_request
from tests.launching import KEY_OF_ALL
from tests.model_repository.python_backend import BACKEND, Request

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("frontend", "model_repository")
QUESTION = "What is the capital of France?"
NUM_REQUESTS = 3  # how tokens gather depends on the clock, and so does how their events are written
PAGE = ROOT / "docs" / "request-path.md"
LIST_BEGIN, LIST_END = "<!-- path: begin -->", "<!-- path: end -->"
# Functions that run beside a request: they would come and go with the clock.
_BACKGROUND = re.compile(
    r"frontend/triton/(health_monitor|replica|replica_state|health_checks|models|repository|channel)\.py|frontend/loop_time\.py"
    r"|engine/metrics\.py|model_repository/model_parameters\.py|\.snapshot$"
    r"|\.engine_stats$|\._control$|one_response|\.note_engine$|_begin_at_zero|Metrics\.set$|CustomMetric|\.stats$|_num_unloading$"
)
# Functions that hand the request, or its output, to the next one. The spine is their callers and themselves. Each of
# them must run: one that has another name now ends the measurement.
HAND_OVERS = (
    "frontend/connections/connection.py:Connection.data_received",
    "frontend/protocol/reading.py:parse",
    "frontend/gateway/admission.py:Admission.enter",
    "frontend/triton/call.py:MultiplexedCall.send",
    "frontend/triton/call.py:MultiplexedCall._next_batch",
    "frontend/triton/messages.py:infer_request",
    "model_repository/contract/codec.py:pack",
    "model_repository/contract/codec.py:unpack",
    "model_repository/engine/inbox.py:Inbox.put",
    "model_repository/engine/intake.py:Intake.receive",
    "model_repository/engine/engine.py:Engine._step",
    "model_repository/engine/sequence.py:EngineSequence.vector",
    "model_repository/engine/output_streams.py:OutputStream.add",
    "model_repository/engine/output_streams.py:OutputStream.flush",
    "model_repository/python_backend.py:TritonResponder.send",
    "frontend/triton/chunk_queue.py:ChunkQueue.put",
    "frontend/triton/chunk_queue.py:ChunkQueue.get",
)
TEXT_HAND_OVERS = (
    "frontend/translate/requests.py:chat_to_requests",
    "model_repository/tokenizer/chat_template.py:ChatTemplate.render",
    "model_repository/tokenizer/vocabulary.py:Vocabulary.encode_pieces",
    "model_repository/engine/llama_cpp/runtime.py:LlamaCppRuntime.submit",
    "model_repository/engine/llama_cpp/context.py:StepContext.compute",
    "model_repository/engine/llama_cpp/sampler.py:TokenSampler.draw",
    "model_repository/engine/sequence.py:EngineSequence.next_delta",
    "model_repository/engine/stop_buffer.py:StopBuffer.push",
    "model_repository/engine/emitter.py:Emitter.due",
    "model_repository/detokenizer/text.py:delta_to_chunk",
    "frontend/translate/sse.py:EventEncoder.encode",
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


@dataclass(frozen=True, slots=True)
class Walk:
    """A request to measure, after a first one that opens connections and fills caches."""

    path: str
    model: str
    body: Callable[[str], dict[str, Any]]  # a text to the rest of the body
    answer: str  # part of the answer to QUESTION
    hand_overs: tuple[str, ...]


def _chat_body(text: str) -> dict[str, Any]:
    return {"stream": True, "messages": [{"role": "user", "content": text}]}


WALKS = {
    "chat": Walk(
        "/v1/chat/completions",
        "demo",
        _chat_body,
        "Paris",
        (*HAND_OVERS, *TEXT_HAND_OVERS, "frontend/translate/chat_reply.py:ChatReply.events"),
    ),
    "messages": Walk(
        "/v1/messages",
        "demo",
        lambda text: {"max_tokens": 20, **_chat_body(text)},
        "Paris",
        (*HAND_OVERS, *TEXT_HAND_OVERS),
    ),
    "embeddings": Walk(
        "/v1/embeddings",
        "demo-embedder",
        lambda text: {"input": [text, f"{text} Again."]},
        '"embedding"',
        (
            *HAND_OVERS,
            "frontend/translate/embeddings.py:embedding_to_requests",
            "frontend/translate/embeddings.py:EmbeddingReply.whole",
        ),
    ),
}


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
            if path.parent.name not in (ARBITER, *LOADERS)  # the models are loaded
        }
        self._stages = {name: self._load(name) for name, each in self._configs.items() if each.backend == "python"}

    def _load(self, name: str) -> Any:
        stage = name.rpartition("__")[2]
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
                if request.model_name not in self._configs:
                    text = f"Request for unknown model: '{request.model_name}' is not found"
                    responses.put_nowait(service_pb2.ModelStreamInferResponse(error_message=text))
                    continue
                steps = [step.model_name for step in self._configs[request.model_name].ensemble_scheduling.step]
                self._run(steps or [request.model_name], tensors_from_request(request), respond)

        passing = asyncio.create_task(pass_on())
        try:
            while True:
                yield await responses.get()
        finally:
            passing.cancel()

    def _run(self, steps: Sequence[str], tensors: Mapping[str, Any], respond: Callable[[Any], None]) -> None:
        name, *rest = steps

        def pass_on(response: Any) -> None:
            if response.error or not rest:
                respond(response)
            else:
                self._run(rest, {tensor.name(): tensor.as_numpy() for tensor in response.tensors}, respond)

        for response in self._stages[name].execute([Request(tensors, on_response=pass_on)]) or ():
            pass_on(response)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Answer as a Triton without an arbiter."""
        text = f"Request for unknown model: '{request.model_name}' is not found"
        await context.abort(grpc.StatusCode.NOT_FOUND, text)

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
    """The functions that begin while it is observed, in whatever thread, in the order of their first begin."""

    def __init__(self, walk: Walk) -> None:
        self._codes: dict[CodeType, None] = {}
        self._hand_overs = {str(ROOT / each) for each in walk.hand_overs}
        self._spine: set[CodeType] = set()

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
        self._codes.setdefault(code)
        if f"{code.co_filename}:{code.co_qualname}" in self._hand_overs:
            frame = sys._getframe(1)
            while frame is not None:
                self._spine.add(frame.f_code)
                frame = frame.f_back  # type: ignore[assignment]

    def check(self) -> None:
        """Check that each hand-over was passed."""
        passed = {f"{code.co_filename}:{code.co_qualname}" for code in self._codes}
        assert self._hand_overs <= passed, f"renamed or gone: {sorted(self._hand_overs - passed)}"

    @property
    def full(self) -> list[Definition]:
        """Every function, and the messages."""
        return sorted({*_definitions_of(self._codes), *map(definition, MESSAGES)})

    @property
    def spine(self) -> list[Definition]:
        """The functions that hand something over, and their callers, in the order of their first begin."""
        return _definitions_of(code for code in self._codes if code in self._spine)


def _definitions_of(codes: Iterable[CodeType]) -> list[Definition]:
    found = dict[Definition, None]()
    for code in codes:
        path = code.co_filename.removeprefix(f"{ROOT}/")
        known = definitions_in(path) if path.partition("/")[0] in PACKAGES else {}
        if code.co_firstlineno in known:  # else a lambda, or the body of a comprehension
            found.setdefault(known[known[code.co_firstlineno][1]][0])
    return [each for each in found if not _BACKGROUND.search(str(each))]


@contextlib.asynccontextmanager
async def served(repository: pathlib.Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client of a frontend in this process, before the stages of a repository."""
    os.chdir(repository.parent)  # for the sockets of the stages
    triton = InProcessTriton(repository)
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    runner = app_runner(Settings(triton_endpoints=(f"127.0.0.1:{port}",)))
    await runner.setup()
    [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session
    await runner.cleanup()
    await server.stop(None)
    triton.finalize()


def replace_triton() -> None:
    """Let the stages and their key be found without Triton."""
    sys.modules["triton_python_backend_utils"] = BACKEND  # type: ignore[assignment]
    os.environ[KEY_VARIABLE] = KEY_OF_ALL


async def path_of(walk: Walk, repository: pathlib.Path) -> Path:
    """Return the path of a request through a frontend and the stages of a repository."""
    path = Path(walk)

    async def answer(session: aiohttp.ClientSession, text: str) -> str:
        async with session.post(walk.path, json={"model": walk.model, **walk.body(text)}) as response:
            return await response.text()

    async with served(repository) as session:
        await answer(session, "Count from 1 to 3.")
        with path.observed():
            texts = [await answer(session, QUESTION) for _ in range(NUM_REQUESTS)]
    assert all(walk.answer in text and "error" not in text for text in texts), texts
    path.check()
    return path


def num_returns(path: Sequence[Definition]) -> int:
    """Return the number of steps into a file that the path has left before."""
    rooms = [name for name, _ in itertools.groupby(each.path for each in path)]
    return len(rooms) - len(set(rooms))


def total(path: Sequence[Definition]) -> str:
    """Return the size of a path in words."""
    num_files = len({each.path for each in path})
    return f"{len(path)} functions, {sum(each.num_lines for each in path):,} lines, {num_files} files"


# --- the page ---------------------------------------------------------------------------------------------------------

PARTS = {
    "request": "The frontend reads the body and makes one complete request for each choice. A request waits for a"
    " place of the model, and leaves on an open gRPC call. A second call brings the outputs of all requests.",
    "tokenizer": "The tokenizer stage renders the chat template, encodes the prompt, and refuses requests that do not"
    " fit the model.",
    "engine": "The engine is one thread. Between two steps new sequences join the batch, and finished ones leave it.",
    "detokenizer": "The detokenizer stage makes text; finish reason and counts come from the engine.",
    "answer": "The frontend gives each reader its chunks and writes them as events.",
    "messages": "Each process packs and reads its messages with the same functions.",
}
NOTES = {
    "frontend/gateway/admission.py:Admission.enter": "waits for a place of the model, in a fair order of the keys",
    "frontend/triton/call.py:MultiplexedCall.send": "lets requests that come together leave in one message",
    "model_repository/engine/stop_buffer.py:StopBuffer.push": "keeps a token while its bytes are an unfinished"
    " character or may begin a stop sequence",
    "model_repository/engine/emitter.py:Emitter.due": "lets tokens gather for at most 40 ms while sending costs"
    " too much",
    "model_repository/engine/output_streams.py:OutputStream.flush": "sends one batch to each reader",
}


def page_list(spine: Sequence[Definition]) -> str:
    """Return the list of the page: its parts, with a step for the functions that follow each other in a file."""
    parts: dict[str, list[Definition]] = {name: [] for name in PARTS}
    for each in spine:
        package, folder, *_ = each.path.split("/")
        if package == "frontend":
            parts["answer" if parts["detokenizer"] else "request"].append(each)
        else:
            parts[folder if folder in parts else "messages"].append(each)
    lines = [f"Its path, as measured: {total(spine)}."]
    number = itertools.count(1)
    for name, functions in parts.items():
        lines += ["", *textwrap.wrap(PARTS[name], 120), ""]
        for path, group in itertools.groupby(functions, key=lambda each: each.path):
            names = [f"`{each.name}`" + (f" ({NOTES[str(each)]})" if str(each) in NOTES else "") for each in group]
            text = f"{next(number)}. `{path}`: {', '.join(names)}"
            lines += textwrap.wrap(text, 120, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(["", *lines, ""])


def listed() -> set[str]:
    """Return the places of the functions that the page lists."""
    text = PAGE.read_text(encoding="utf-8").partition(LIST_BEGIN)[2].partition(LIST_END)[0]
    steps = re.split(r"^\d+\. `([\w/]+\.py)`:", text, flags=re.MULTILINE)[1:]
    return {f"{path}:{name}" for path, names in itertools.batched(steps, 2) for name in re.findall(r"`(.+?)`", names)}


def write_page(spine: Sequence[Definition]) -> None:
    """Replace the list of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(LIST_BEGIN)
    after = rest.partition(LIST_END)[2]
    PAGE.write_text(f"{before}{LIST_BEGIN}\n{page_list(spine)}\n{LIST_END}{after}", encoding="utf-8")


def main() -> None:
    """Measure a walk, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("walk", nargs="?", default="chat", choices=WALKS)
    parser.add_argument("--list", action="store_true", help="print each function, with a star for the spine")
    parser.add_argument("--write", action="store_true", help="write the list of docs/request-path.md")
    options = parser.parse_args()
    replace_triton()
    walk = WALKS[options.walk]
    with tempfile.TemporaryDirectory() as folder:
        # Tokens that gather by the clock would make the path another one in each run.
        assert build_engines(["build", walk.model, "--home", folder, "--stream-interval-ms", "0"]) == 0
        path = asyncio.run(path_of(walk, pathlib.Path(folder) / "repository"))
    spine = path.spine
    if options.list:
        for file, group in itertools.groupby(path.full, key=lambda each: each.path):
            print(file)  # noqa: T201
            for each in group:
                print(f"  {each.num_lines:4} {each.name}{' *' if each in spine else ''}")  # noqa: T201
    print(f"full path: {total(path.full)}")  # noqa: T201
    print(f"spine: {total(spine)}, {num_returns(spine)} returns")  # noqa: T201
    if options.write:
        write_page(spine)


if __name__ == "__main__":
    main()
