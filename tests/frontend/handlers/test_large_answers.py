"""Large answers without a stream: their memory, and how they are made beside other requests."""

from __future__ import annotations

import asyncio
import select
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from msgspec.structs import replace

from frontend.handlers import large_answers, shared_memory
from frontend.handlers.large_answers import LARGE_ANSWERS, MAX_ANSWER_BYTES
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob, TopLogprob
from tests.fakes import USAGE, FakeTriton, chunks, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, COMPLETION, EMBEDDING, RESPONSE
from tests.frontend.conftest import Serve
from tests.frontend.connections.raw_http import narrow_connection, port_of, post
from tests.frontend.gateway.key_files import KeyFile
from tests.launching import free_port, running
from tests.processes import max_memory_bytes, memory_bytes
from tests.waiting import wait_until

CHAT_PATH = "/v1/chat/completions"
SENDER = "127.0.0.1"
LIKELY = {"logprobs": True, "top_logprobs": 20}
TOP = tuple(TopLogprob(number, b"token", -0.5) for number in range(20))


def scored(num_tokens: int) -> list[GenerationChunk]:
    """Return a completion with the most likely tokens of each of its tokens."""
    logprobs = pack_logprobs([TokenLogprob(1, b"a", -0.5, TOP)] * num_tokens)
    return [GenerationChunk(text="a" * num_tokens, logprobs=logprobs, finish_reason=FinishReason.STOP, usage=USAGE)]


@pytest.mark.parametrize(
    ("path", "body", "is_large"),
    [
        (CHAT_PATH, CHAT, False),
        (CHAT_PATH, CHAT | {"max_tokens": 100, **LIKELY}, False),
        (CHAT_PATH, CHAT | LIKELY, True),
        (CHAT_PATH, CHAT | {"n": 64, "max_tokens": 500}, True),
        (CHAT_PATH, CHAT | {"n": 64, "max_tokens": 500, "stream": True}, False),
        (CHAT_PATH, CHAT | {"n": 128, "max_tokens": 2000, **LIKELY}, True),
        ("/v1/completions", COMPLETION | {"n": 64, "max_tokens": 500, "logprobs": 5}, True),
        ("/v1/completions", COMPLETION | {"prompt": "a" * 4000, "prompt_logprobs": 20}, True),
        ("/v1/responses", RESPONSE | {"include": ["message.output_text.logprobs"], "top_logprobs": 20}, True),
        ("/v1/tokenize", {"model": "org/demo", "prompt": "a" * 1000}, False),
        ("/v1/tokenize", {"model": "org/demo", "prompt": "a" * 10_000}, True),
        ("/v1/embeddings", EMBEDDING, False),
        ("/v1/embeddings", EMBEDDING | {"input": ["a"] * 100}, True),
    ],
    ids=str,
)
async def test_an_answer_has_its_memory_before_the_model_runs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], is_large: bool
) -> None:
    """40 bodies of 10 kB took the frontend to 1.4 GB before one answer had begun."""
    apps: list[web.Application] = []
    triton = FakeTriton(chunks("a"), models=[served_model(pooling="mean" if path == "/v1/embeddings" else "")])
    http = await serve(triton, apps)
    await apps[0][LARGE_ANSWERS].reserve(SENDER, MAX_ANSWER_BYTES - 70_000)
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.0)
    response = await http.post(path, json=body)
    assert (response.status == 503) is is_large
    assert bool(triton.requests or triton.tokenized) is not is_large
    if is_large:
        error = await error_of(response)
        assert error["code"] == "overloaded" and "answers that are not read" in error["message"]


async def test_an_answer_that_grows_too_large_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    apps: list[web.Application] = []
    http = await serve(FakeTriton(scored(2000)), apps)  # 500 tokens are expected

    async def status() -> int:
        async with http.post(CHAT_PATH, json=CHAT | LIKELY) as response:
            await response.read()
            return response.status

    memory = apps[0][LARGE_ANSWERS]
    await memory.reserve(SENDER, MAX_ANSWER_BYTES - 400_000)
    assert await status() == 503
    memory.release(SENDER, MAX_ANSWER_BYTES - 400_000)
    assert await status() == 200
    await memory.reserve(SENDER, MAX_ANSWER_BYTES)  # all of it: nothing is held after an answer
    memory.release(SENDER, MAX_ANSWER_BYTES)
    monkeypatch.setattr(large_answers, "MAX_ANSWER_BYTES", 400_000)
    assert await status() == 400


async def test_a_key_that_does_not_read_its_answers_leaves_memory_to_another_key(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers of 10 MB and more stayed in memory without a bound."""
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.0)
    monkeypatch.setattr(large_answers, "MAX_ANSWER_BYTES", 5_000_000)
    key_file = KeyFile(tmp_path / "keys.json")
    for name in ("slow", "other"):
        key_file.add(name)
    # 2 MB each, and 6 MB as JSON: two of them are more than the kernel takes
    http = await serve(FakeTriton(scored(6000)), key_file=str(key_file.path))
    body = CHAT | LIKELY | {"n": 2}

    async def status(name: str) -> int:
        async with http.post(CHAT_PATH, json=body, headers=key_file.headers(name)) as response:
            await response.read()
            return response.status

    with narrow_connection(port_of(http)) as client:
        client.sendall(post(CHAT_PATH, body, f"Authorization: Bearer {key_file.texts['slow']}"))
        assert await asyncio.to_thread(client.recv, 1)
        assert [await status("slow"), await status("other"), await status("slow")] == [503, 200, 503]
    while await status("slow") == 503:
        pass


def test_a_process_returns_the_memory_of_answers_that_nobody_read(tmp_path: Path) -> None:
    """glibc kept all memory below the last piece in use: 1.4 GB after the hang-up of 40 clients."""
    port = free_port()
    args = [sys.executable, "-P", "-m", "tests.frontend.wide_embedder", str(port)]
    body = EMBEDDING | {"input": ["a"] * 128}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", orjson.dumps(body), headers)
    with running(tmp_path, "embedder", args=args, cwd=Path(__file__).parents[3]) as server, ExitStack() as clients:
        server.wait_for("listens")

        urllib.request.urlopen(request).read()
        before = memory_bytes(server.process.pid)
        waiting = [clients.enter_context(narrow_connection(port)) for _ in range(40)]
        for client in waiting:
            client.sendall(post("/v1/embeddings", body))
        wait_until(lambda: len(select.select(waiting, [], [], 0)[0]) > 10, "the beginning of ten answers")
        assert max_memory_bytes(server.process.pid) < before + 2 * MAX_ANSWER_BYTES
        clients.close()
        wait_until(lambda: memory_bytes(server.process.pid) < 1.3 * before, "the memory of before", timeout_s=30)


async def test_other_requests_are_answered_while_an_answer_is_made(serve: Serve) -> None:
    """A request of 170 bytes stopped all others for seconds."""
    http = await serve(FakeTriton(lambda request: scored(500 if request.params.has_logprobs else 1)))
    async with http.post(CHAT_PATH, json=CHAT | LIKELY | {"n": 16}) as large:
        reading = asyncio.create_task(large.read())
        for _ in range(3):
            assert (await http.post(CHAT_PATH, json=CHAT)).status == 200
            assert not reading.done()
        answer = await reading
        assert len(answer) > 10_000_000 and "Content-Length" not in large.headers


async def test_a_streams_large_event_is_made_beside_other_requests(serve: Serve) -> None:
    """The last event of a response repeats all log probabilities."""
    parts = [replace(part, finish_reason=None, usage=None) for part in scored(100) * 40]
    script = [*parts, *chunks("a")]
    http = await serve(FakeTriton(lambda request: script if request.params.has_logprobs else chunks("a")))
    body = RESPONSE | {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "stream": True}
    async with http.post("/v1/responses", json=body) as large:
        async for line in large.content:
            if line.startswith(b"event: response.output_text.done"):
                break
        reading = asyncio.create_task(large.read())
        for _ in range(3):
            assert (await http.post(CHAT_PATH, json=CHAT)).status == 200
            assert not reading.done()
        *_, last, end = (await reading).split(b"\n\n")
    assert not end
    [message] = orjson.loads(last.partition(b"data: ")[2])["response"]["output"]
    assert len(message["content"][0]["logprobs"]) == 4000
