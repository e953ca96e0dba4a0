"""What clients see when their request is wrong, or when the server breaks under it. Nothing hangs, nothing lies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import OpenAI

from frontend.launcher.guard import marked_pids
from frontend.launcher.launcher import Interrupted
from model_repository.contract.tensors import model_id_to_slug, stage_name
from tests.integration.conftest import FRONTEND, running_stack
from tests.integration.replicas import StreamOutcome, read_stream, until
from tests.integration.stack import PACED_MODEL, Stack
from tests.processes import command_line, is_running, parent_of
from tests.waiting import DEADLINE_S, wait_until

SLUG = model_id_to_slug(PACED_MODEL)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def whole(stack: Stack) -> Iterator[None]:
    """Have a server that answers, and leave one to the next test."""
    wait_until(lambda: is_whole(stack), "both models answer")
    yield
    wait_until(lambda: is_whole(stack), "both models answer")


def is_whole(stack: Stack) -> bool:
    """Whether both models answer; a tritonserver that has ended is started again."""
    stack.start_again_if_ended()
    return answers(stack, "demo") and answers(stack, PACED_MODEL)


def post(stack: Stack, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and body."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{stack.url}{path}", payload, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def answers(stack: Stack, model: str) -> bool:
    """Whether a model makes a token."""
    return post(stack, "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 1})[0] == 200


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": HELLO} | fields


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (chat(model="nobody"), 404, "model"),
        (b'{"model": "demo", "messages": [', 400, None),
        (chat(messages=[]), 400, "messages"),
        (chat(messages="\ud800"), 400, None),  # no JSON text: it cannot be UTF-8
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_tokens=-5), 400, "max_tokens"),
        (chat(max_tokens="many"), 400, "max_tokens"),
        (chat(temperature=2.1), 400, "temperature"),
        (chat(stop=["a"] * 17), 400, "stop"),
        (chat(n=129), 400, "n"),
        (chat(tools=[{"type": "function", "function": {"name": "no spaces"}}]), 400, "tools"),
        (chat(top_logprobs=5), 400, "top_logprobs"),
        (chat(lora_name="x", store=True), 400, "store"),
        (chat(messages=[{"role": "user", "content": "word " * 5000}]), 400, "messages"),
        (chat(messages=[{"role": "user", "content": "x" * 1_100_000}]), 413, None),
    ],
)
def test_a_bad_request_is_refused_with_field_and_status(
    stack: Stack, body: bytes | dict[str, Any], status: int, param: str | None
) -> None:
    answered, envelope = post(stack, "/v1/chat/completions", body)
    error = envelope["error"]
    assert answered == status, envelope
    assert error["message"] and error["type"]
    assert (error["param"] or "").startswith(param or "")
    assert param is None or param in error["message"]


def test_a_prompt_over_the_context_window_says_so(stack: Stack) -> None:
    status, envelope = post(stack, "/v1/completions", {"model": "demo", "prompt": "word " * 5000})
    assert status == 400
    assert envelope["error"]["code"] == "context_length_exceeded"
    assert "2048" in envelope["error"]["message"]


def test_max_tokens_is_lowered_to_what_the_window_leaves(stack: Stack) -> None:
    body = {"model": PACED_MODEL, "prompt": "Hello " * 2000, "max_tokens": 100_000}
    status, answer = post(stack, "/v1/completions", body)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048


def test_while_triton_is_down_requests_answer_503_and_recover_with_it(stack: Stack, client: OpenAI) -> None:
    stack.launcher.triton.kill()
    status, envelope = post(stack, "/v1/chat/completions", chat())
    assert (status, bool(envelope["error"]["message"])) == (503, True)
    stack.launcher.start_again(stack.launcher.triton)
    wait_until(lambda: answers(stack, "demo"), "the demo model answers again")
    assert client.chat.completions.create(model="demo", messages=HELLO).choices  # type: ignore[arg-type]


def test_triton_killed_mid_stream_ends_the_stream_with_an_error(stack: Stack, client: OpenAI) -> None:
    stream = paced_stream(client)
    next(stream)
    stack.launcher.triton.kill()
    with pytest.raises(openai.APIError):
        finish_reasons_of(stream)
    stack.launcher.start_again(stack.launcher.triton)


@pytest.mark.parametrize("stage", ["engine", "detokenizer", "tokenizer"])
def test_a_model_serves_again_after_a_stage_was_killed(stack: Stack, stage: str) -> None:
    stack.kill_stage(stage_name(SLUG, stage))
    wait_until(lambda: is_whole(stack), "it answers again")


@pytest.mark.parametrize("stage", ["engine", "detokenizer"])
def test_a_stage_killed_mid_stream_ends_the_stream_with_an_error(stack: Stack, client: OpenAI, stage: str) -> None:
    stream = paced_stream(client)
    next(stream)
    stack.kill_stage(stage_name(SLUG, stage))
    with pytest.raises(openai.APIError):
        finish_reasons_of(stream)


def test_an_engine_killed_under_a_request_without_stream_answers_an_error(stack: Stack, client: OpenAI) -> None:
    import threading

    outcomes: list[Exception | Any] = []

    def ask() -> None:
        try:
            outcomes.append(client.completions.create(model=PACED_MODEL, prompt="Hello", max_tokens=2000))
        except openai.APIError as exc:
            outcomes.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: stack.stats(PACED_MODEL).num_active == 1, "it runs")
    stack.kill_stage(stage_name(SLUG, "engine"))
    thread.join(DEADLINE_S)
    [outcome] = outcomes
    assert isinstance(outcome, openai.InternalServerError)


def paced_stream(client: OpenAI) -> Iterator[Any]:
    """Return a stream of twenty seconds, if nothing ends it."""
    return iter(client.completions.create(model=PACED_MODEL, prompt="Hello", max_tokens=2000, stream=True))


def finish_reasons_of(stream: Iterator[Any]) -> None:
    """Read a broken stream to its end; no chunk may claim that the completion is finished."""
    for chunk in stream:
        assert chunk.choices[0].finish_reason is None


# --- every process of serve -------------------------------------------------------------------------------------------

STAGES = ("tokenizer", "engine", "detokenizer")
OF_TRITON = {"tritonserver": "/bin/tritonserver ", **{stage: f"__{stage}/1/model.py" for stage in STAGES}}
OF_THE_FRONTEND = {"frontend": " -m frontend api ", "worker": ".spawn ", "tracker": ".resource_tracker "}
OF_SERVE = {**OF_TRITON, **OF_THE_FRONTEND, "guard": "/launcher/guard.py "}  # by a part of their command lines
COMPILER = "compiler"  # of grammars: a fork of the tokenizer stage
NUM_COMPILERS = 3
NUM_SPAWNED = 3  # of two workers, with the process of their limits
NUM_READERS = 4


@contextmanager
def watched_stack(workers: int, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run what `serve` does with so many workers, and watch it."""
    settings = replace(FRONTEND, workers=workers)
    with running_stack(repository, tmp_path_factory, settings) as stack, ThreadPoolExecutor(1) as pool:
        watching = pool.submit(stack.launcher.watch)
        try:
            yield stack
        finally:
            stack.launcher.interrupt()
        with pytest.raises(Interrupted):
            watching.result(DEADLINE_S)


@pytest.fixture(scope="module")
def two_workers(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """What `serve` runs with two workers, watched."""
    with watched_stack(2, paced_repository, tmp_path_factory) as stack:
        yield stack


def processes_of(stack: Stack) -> dict[str, list[int]]:
    """Return what a launcher has started, by the names in OF_SERVE."""
    mark = stack.launcher._mark
    pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
    guards = {pid for pid in pids if mark.encode() in command_line(pid).split(b"\0")}
    found: dict[str, list[int]] = {}
    for pid in sorted(marked_pids(mark) | guards):
        words = command_line(pid).replace(b"\0", b" ").decode()
        name = next((name for name, part in OF_SERVE.items() if part in words), words)
        if name == "tokenizer" and command_line(parent_of(pid)) == command_line(pid):
            name = COMPILER
        found.setdefault(name, []).append(pid)
    return found


async def kill_under_streams(stack: Stack, pid: int) -> None:
    """Kill a process under streams, and require an answer after it, and nothing left of the streams."""
    outcomes = [StreamOutcome() for _ in range(NUM_READERS)]
    async with aiohttp.ClientSession() as session:

        async def read(outcome: StreamOutcome) -> None:
            while not outcome.text:  # it is refused while a worker does not know yet that all is well again
                with suppress(aiohttp.ClientError):
                    await read_stream(session, stack.url, outcome, 1900)

        streams = asyncio.gather(*map(read, outcomes))
        await until(lambda: all(outcome.text for outcome in outcomes), "the streams have begun")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_running(pid), "it is gone")
        await until(lambda: answers_again(stack), "it answers again")
        streams.cancel()
        with suppress(asyncio.CancelledError):
            await streams
    assert not any(outcome.finish_reasons and not outcome.is_whole for outcome in outcomes)
    await asyncio.to_thread(stack.wait_until_idle, PACED_MODEL)


def answers_again(stack: Stack) -> bool:
    """Whether the paced model makes a token; while the frontend is away, nothing listens."""
    try:
        return answers(stack, PACED_MODEL)
    except OSError:
        return False


async def test_the_only_frontend_is_started_again_and_triton_goes_on(
    paced_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with watched_stack(1, paced_repository, tmp_path_factory) as stack:
        before = processes_of(stack)
        expected = dict.fromkeys(("guard", *OF_TRITON, "frontend"), 1) | {COMPILER: NUM_COMPILERS}
        assert {name: len(pids) for name, pids in before.items()} == expected
        await kill_under_streams(stack, before["frontend"][0])
        after = processes_of(stack)
        assert after.pop("frontend") != before.pop("frontend")
        assert after == before


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, 0) for name in (*OF_SERVE, COMPILER)), *(("worker", number) for number in range(1, NUM_SPAWNED))],
)
async def test_serve_answers_again_after_any_of_its_processes_was_killed(
    two_workers: Stack, name: str, number: int
) -> None:
    def is_complete() -> bool:
        found = processes_of(two_workers)
        names = set(found) | {"guard", "tracker"}  # these two are not missed
        return names == {*OF_SERVE, COMPILER} and len(found["worker"]) == NUM_SPAWNED

    await until(is_complete, "all processes run")
    before = processes_of(two_workers)
    await kill_under_streams(two_workers, before[name][number])
    assert name in OF_TRITON or processes_of(two_workers)["tritonserver"] == before["tritonserver"]
