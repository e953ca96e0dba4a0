"""Streams of every kind under a death: each has the text that it has alone, in events that the official SDKs read."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai.types.chat import ChatCompletionChunk

from frontend.handlers.generation import RESUMED_HEADER
from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.anthropic_types import checked_event
from tests.integration.api import Api
from tests.integration.conftest import FRONTEND, running_stack
from tests.integration.replicas import streaming, until
from tests.integration.stack import FLOOD_MODEL, Stack
from tests.integration.test_grpc_tensors import generate
from tests.responses_types import checked_response_event

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
CHECKS: dict[str, Callable[[Any], object]] = {  # the client's type of completions has no events without a finish reason
    CHAT: ChatCompletionChunk.model_validate,
    RESPONSES: checked_response_event,
    MESSAGES: checked_event,
}
COPIES = 2  # of each stream
WHOLE = ("response", "item", "part", "message")  # what events repeat, and the usage when a message begins


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
PICTURE = base64.b64encode(resources.files("build_engines").joinpath("demo", "pictures.png").read_bytes()).decode()
LONG: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True}
SEEDED: dict[str, Any] = {"temperature": 0.5, "seed": 11, "top_p": 0.9}
TEXT: dict[str, Any] = {"prompt": "The capital of France is", **LONG}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, TEXT | {"temperature": 0}),
    "seeded": (COMPLETIONS, TEXT | SEEDED),
    "penalties": (COMPLETIONS, TEXT | {"temperature": 0, "frequency_penalty": 1.0, "repetition_penalty": 1.1}),
    "mirostat": (COMPLETIONS, TEXT | SEEDED | {"mirostat": 2}),
    "log probabilities": (COMPLETIONS, TEXT | {"temperature": 0, "logprobs": 2, "echo": True}),
    "stop": (COMPLETIONS, TEXT | SEEDED | {"stop": ["zqzq", "the end of it"]}),
    "choices": (CHAT, {"messages": said("Hello"), "n": 3, **LONG, **SEEDED}),
    "schema": (
        CHAT,
        {
            "messages": said("Hello"),
            "max_tokens": 60,
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
        },
    ),
    "tools": (
        CHAT,
        {
            "messages": said("What is 1 plus 2?"),
            "tools": [{"type": "function", "function": TOOL}],
            "max_tokens": 60,
            "temperature": 0,
        },
    ),
    "adapter": (CHAT, {"model": "demo-formal", "messages": said("Hello"), **LONG, "temperature": 0}),
    "thinking": (
        CHAT,
        {"model": "demo-thinking", "messages": said("What is 1 plus 2?"), "max_tokens": 60, "temperature": 0},
    ),
    "picture": (
        CHAT,
        {
            "model": "demo-pictures",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                        {"type": "text", "text": "What is this?"},
                    ],
                }
            ],
            **LONG,
            "temperature": 0,
        },
    ),
    "responses": (RESPONSES, {"input": "Hello", "max_output_tokens": 48, "temperature": 0, "store": False}),
    "messages": (MESSAGES, {"messages": said("Hello"), "max_tokens": 48, "temperature": 0}),
}


@dataclass(eq=False)
class Read:
    """One stream, as a client reads it."""

    kind: str
    texts: dict[str, str] = field(default_factory=lambda: defaultdict(str))  # by the place of their pieces
    endings: list[Any] = field(default_factory=list)  # finish reasons and usage
    num_events: int = 0
    num_resumed: int = 0

    async def run(self, session: aiohttp.ClientSession) -> None:
        path, body = KINDS[self.kind]
        async with session.post(path, json={"model": "demo"} | body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            self.num_resumed += RESUMED_HEADER in response.headers
            async for line in response.content:
                text = line.decode().strip()
                self.num_resumed += text.startswith(": x-resumed:")
                if text.startswith("data: {"):
                    event = json.loads(text.removeprefix("data: "))
                    assert "error" not in event, event
                    if path in CHECKS:
                        CHECKS[path](event)
                    self.num_events += 1
                    self._take(event)

    def _take(self, event: Any, place: str = "") -> None:
        """Join the pieces of texts, and keep what ends them."""
        match event:
            case {"delta": str(delta), "type": kind, **rest}:  # Responses
                self.texts[f"{kind} {rest.get('output_index')}"] += delta
            case dict():
                index = event.get("index", "")
                for name, value in event.items():
                    if name in ("text", "content", "reasoning_content", "arguments", "thinking", "partial_json"):
                        self.texts[f"{place}{index}.{name}"] += value if isinstance(value, str) else ""
                    elif name in ("finish_reason", "stop_reason", "output_tokens", "completion_tokens") and value:
                        self.endings.append((index, name, value))
                    elif isinstance(value, dict | list) and name not in WHOLE:
                        self._take(value, f"{place}{index}.{name}")
            case list():
                for each in event:
                    self._take(each, place)

    @property
    def found(self) -> tuple[Any, ...]:
        """Everything that must not depend on a death."""
        return {name: text for name, text in self.texts.items() if text}, sorted(map(str, self.endings))


@pytest.fixture(scope="module")
def own_stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server whose parts the tests may kill."""
    with running_stack(repository, tmp_path_factory) as stack:
        yield stack


@asynccontextmanager
async def kept_running(stack: Stack) -> AsyncIterator[None]:
    """Start a Triton again that ends with one of its stages, within the block."""

    async def watch() -> None:
        while True:
            stack.start_again_if_ended()
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def kill_triton(stack: Stack) -> None:
    stack.launcher.triton.kill()
    stack.launcher.start_again(stack.launcher.triton)


FAULTS: dict[str, Callable[[Stack], None]] = {
    "engine": lambda stack: stack.kill_stage("demo__engine"),
    "detokenizer": lambda stack: stack.kill_stage("demo__detokenizer"),
    "tritonserver": kill_triton,
}
BY_DEFAULT = {("engine", 10)}


@pytest.mark.parametrize(
    ("fault", "num_events"),
    [
        pytest.param(fault, number, marks=() if (fault, number) in BY_DEFAULT else pytest.mark.faults)
        for fault in FAULTS
        for number in (0, 1, 10, 100, 400)
    ],
)
async def test_streams_of_every_kind_survive_a_death(own_stack: Stack, fault: str, num_events: int) -> None:
    async with aiohttp.ClientSession(own_stack.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        await until(lambda: Api(own_stack.url).get("/health/ready").status == 200, "the last fault is over")
        alone = {}
        for kind in KINDS:
            alone[kind] = Read(kind)
            await alone[kind].run(session)
        reads = [Read(kind) for kind in KINDS for _ in range(COPIES)]
        running = asyncio.gather(*(each.run(session) for each in reads))
        await until(lambda: running.done() or sum(each.num_events for each in reads) >= num_events, "they have begun")
        await asyncio.to_thread(FAULTS[fault], own_stack)
        async with kept_running(own_stack):
            await running
    for each in reads:
        assert each.found == alone[each.kind].found, each.kind
    assert any(each.num_resumed for each in reads)


async def test_a_request_that_ends_engines_fails_alone(
    flood_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = stage_name(model_id_to_ensemble(FLOOD_MODEL), "engine")
    body = {"model": FLOOD_MODEL, "prompt": "Hello", "max_tokens": 1900, "stream": True}
    num_kills, num_resumed, code = 0, 0, ""
    patient = replace(FRONTEND, resume_within_s=300.0)  # on a busy machine, the tries of all groups take longer
    with running_stack(flood_repository, tmp_path_factory, patient) as stack:
        async with (
            kept_running(stack),
            streaming(stack.url, 1900, num_streams=31, model=FLOOD_MODEL) as outcomes,
            aiohttp.ClientSession(stack.url) as session,
            session.post(COMPLETIONS, json=body) as response,
        ):
            await until(lambda: all(each.text for each in outcomes), "the others have begun")
            async for line in response.content:
                num_resumed = int(line.decode().partition(": x-resumed: ")[2] or num_resumed)
                if line.startswith(b"data: {") and b'"error"' in line:
                    code = json.loads(line.removeprefix(b"data: "))["error"]["code"]
                elif line.startswith(b"data: {") and num_kills == num_resumed:
                    num_kills += 1
                    stack.kill_stage(engine)
    assert (code, num_kills) == ("request_breaks_engine", 3)
    assert all(outcome.is_whole for outcome in outcomes), outcomes
    assert len({outcome.text for outcome in outcomes}) == 1


def test_a_grpc_client_goes_on_by_the_tokens(stack: Stack) -> None:
    request = {"temperature": 1.0, "seed": 5, "max_tokens": 30, "ignore_eos": True, "return_token_ids": True}
    whole = generate(stack, **request)
    seen = whole["token_ids"][:11]
    rest = generate(stack, **request, resume_token_ids=seen)
    assert seen + rest["token_ids"] == whole["token_ids"]
    assert whole["text_output"][0].endswith(rest["text_output"][0])
    assert (rest["num_output_tokens"], rest["num_input_tokens"]) == ([30], whole["num_input_tokens"])
    assert "input_token_ids" not in rest
