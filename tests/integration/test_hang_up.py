"""Whoever hangs up, in whatever phase and through whatever door: the engine's sequence is freed, the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import INPUTS, model_id_to_slug
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack
from tests.waiting import wait_until

MAX_FREE_MS = 3000.0  # a fifth of what the generation would have run on: generous, since the machine may be busy
SLUG = model_id_to_slug(PACED_MODEL)


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """Begin and end with an idle engine."""
    stack.wait_until_idle(PACED_MODEL)
    stack.wait_until_idle("demo")
    yield
    stack.wait_until_idle(PACED_MODEL)
    stack.wait_until_idle("demo")


@contextmanager
def cancels(stack: Stack, model: str, num_sequences: int = 1) -> Iterator[None]:
    """Require that exactly so many sequences of the model are cancelled within the block, soon."""
    before = stack.stats(model).num_cancelled
    yield
    wait_until(lambda: stack.stats(model).num_cancelled >= before + num_sequences, "the sequences are cancelled")
    after = stack.stats(model)
    assert after.num_cancelled == before + num_sequences
    assert after.last_cancel_to_free_ms < MAX_FREE_MS


async def until(stack: Stack, model: str, condition: Any) -> None:
    """Wait for a state of the engine without blocking the event loop."""

    def is_true() -> bool:
        stats: EngineStats = stack.stats(model)
        return bool(condition(stats))

    await asyncio.to_thread(wait_until, is_true, "the engine's state")


def completion(model: str, *, is_stream: bool, max_tokens: int = 1500, prompt: str = "Hello") -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": is_stream}


@asynccontextmanager
async def posted(stack: Stack, body: dict[str, Any]) -> AsyncIterator[asyncio.Task[aiohttp.ClientResponse]]:
    """Post a completion from a connection of its own, which is cut at the end."""
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(session.post(f"{stack.url}/v1/completions", json=body))
        try:
            yield task
        finally:
            if task.done():
                task.result().close()
            else:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_http_mid_stream(stack: Stack) -> None:
    with cancels(stack, PACED_MODEL):
        async with posted(stack, completion(PACED_MODEL, is_stream=True)) as task:
            response = await task
            await response.content.readline()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_http_with_more_choices_than_run_at_a_time(stack: Stack, is_stream: bool) -> None:
    num_choices = MAX_SEQUENCES + 2
    with cancels(stack, PACED_MODEL, num_choices):
        async with posted(stack, completion(PACED_MODEL, is_stream=is_stream) | {"n": num_choices}):
            await until(stack, PACED_MODEL, lambda stats: stats.num_active + stats.num_waiting == num_choices)


async def test_http_not_streaming(stack: Stack) -> None:
    with cancels(stack, PACED_MODEL):
        async with posted(stack, completion(PACED_MODEL, is_stream=False)):
            await until(stack, PACED_MODEL, lambda stats: stats.num_active == 1)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_http_queued(stack: Stack, is_stream: bool) -> None:
    with busy(stack), cancels(stack, PACED_MODEL):
        async with posted(stack, completion(PACED_MODEL, is_stream=is_stream)):
            await until(stack, PACED_MODEL, lambda stats: stats.num_waiting == 1)


async def test_http_in_prefill(stack: Stack) -> None:
    # Two thousand tokens beside a running stream are prefilled in chunks over many steps.
    long_prompt = " ".join(f"{number}," for number in range(1, 400))
    async with posted(stack, completion("demo", is_stream=False, prompt="Count from 1 to 200.")):
        with cancels(stack, "demo"):
            before = stack.stats("demo").num_cells_used
            async with posted(stack, completion("demo", is_stream=True, prompt=long_prompt)):
                await until(stack, "demo", lambda stats: stats.num_cells_used > before + 100)


def test_grpc_cancelled_mid_stream(stack: Stack) -> None:
    with cancels(stack, PACED_MODEL):
        call = stack.stream(SLUG, tensors(is_stream=True))
        next(call)
        call.cancel()


def test_grpc_cancelled_while_not_streaming(stack: Stack) -> None:
    with cancels(stack, PACED_MODEL):
        call = stack.stream(SLUG, tensors(is_stream=False))
        wait_until(lambda: stack.stats(PACED_MODEL).num_active == 1, "it runs")
        call.cancel()


def test_grpc_cancelled_while_queued(stack: Stack) -> None:
    with busy(stack), cancels(stack, PACED_MODEL):
        call = stack.stream(SLUG, tensors(is_stream=True))
        wait_until(lambda: stack.stats(PACED_MODEL).num_waiting == 1, "it waits")
        call.cancel()


def test_a_killed_grpc_client_frees_its_sequence(stack: Stack) -> None:
    script = f"""
import sys, grpc
from tests.integration.stack import service_pb2_grpc, infer_request
from tests.integration.test_hang_up import tensors
stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel({stack.endpoint!r}))
for _ in stub.ModelStreamInfer(iter((infer_request({SLUG!r}, tensors(is_stream=True)),))):
    print("token", flush=True)
"""
    command = [sys.executable, "-c", script]
    with cancels(stack, PACED_MODEL), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "token\n"
        os.kill(process.pid, signal.SIGKILL)


def test_the_others_go_on(stack: Stack) -> None:
    other = stack.stream(SLUG, tensors(is_stream=True, max_tokens=60))
    next(other)
    with cancels(stack, PACED_MODEL):
        call = stack.stream(SLUG, tensors(is_stream=True))
        next(call)
        call.cancel()
    responses = list(other)
    assert not any(response.error_message for response in responses)
    last = {output.name for output in responses[-1].infer_response.outputs}
    assert "finish_reason" in last


def test_a_silent_request_is_probed_without_the_client_seeing_it(stack: Stack) -> None:
    # 100 tokens every 10 ms without a response: the engine probes for the client about ten times.
    [answer] = stack.infer(SLUG, tensors(is_stream=False, max_tokens=100))
    assert answer["num_output_tokens"].item() == 100


def tensors(*, is_stream: bool, max_tokens: int = 1500) -> dict[str, Any]:
    """What a bare gRPC client sends."""
    return {
        "text_input": tensor(INPUTS["text_input"], "Hello"),
        "max_tokens": tensor(INPUTS["max_tokens"], max_tokens),
        "stream": tensor(INPUTS["stream"], is_stream),
    }


@contextmanager
def busy(stack: Stack) -> Iterator[None]:
    """Occupy every slot of the paced engine."""
    calls = [stack.stream(SLUG, tensors(is_stream=True)) for _ in range(MAX_SEQUENCES)]
    for call in calls:
        next(call)
    yield
    for call in calls:
        call.cancel()
