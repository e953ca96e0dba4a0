"""A client that hangs up, over HTTP or gRPC and in any phase, frees its sequences; other requests go on."""

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
from model_repository.contract.tensors import INPUTS, model_id_to_ensemble
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)


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
    """Require that the block cancels exactly this number of sequences of the model."""
    before = stack.stats(model).num_cancelled
    yield
    wait_until(lambda: stack.stats(model).num_cancelled >= before + num_sequences, "the sequences are cancelled")
    assert stack.stats(model).num_cancelled == before + num_sequences


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


@pytest.mark.parametrize("num_choices", [1, MAX_SEQUENCES + 2])  # one choice, or more than run at a time
@pytest.mark.parametrize("is_stream", [True, False])
async def test_http_while_running(stack: Stack, is_stream: bool, num_choices: int) -> None:
    with cancels(stack, PACED_MODEL, num_choices):
        async with posted(stack, completion(PACED_MODEL, is_stream=is_stream) | {"n": num_choices}) as task:
            await until(stack, PACED_MODEL, lambda stats: stats.num_active + stats.num_waiting == num_choices)
            if is_stream:
                await (await task).content.readline()


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
            before = stack.stats("demo").num_kv_tokens_used
            async with posted(stack, completion("demo", is_stream=True, prompt=long_prompt)):
                await until(stack, "demo", lambda stats: stats.num_kv_tokens_used > before + 100)


@pytest.mark.parametrize("is_stream", [True, False])
def test_grpc_cancelled_while_running(stack: Stack, is_stream: bool) -> None:
    with cancels(stack, PACED_MODEL):
        call = stack.stream(ENSEMBLE, tensors(is_stream=is_stream))
        wait_until(lambda: stack.stats(PACED_MODEL).num_active == 1, "it runs")
        if is_stream:
            next(call)
        call.cancel()


def test_grpc_cancelled_while_queued(stack: Stack) -> None:
    with busy(stack), cancels(stack, PACED_MODEL):
        call = stack.stream(ENSEMBLE, tensors(is_stream=True))
        wait_until(lambda: stack.stats(PACED_MODEL).num_waiting == 1, "it waits")
        call.cancel()


def test_a_killed_grpc_client_frees_its_sequence(stack: Stack) -> None:
    script = f"""
import sys, grpc
from tests.integration.stack import service_pb2_grpc, infer_request
from tests.integration.test_hang_up import tensors
stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel({stack.endpoint!r}))
for _ in stub.ModelStreamInfer(iter((infer_request({ENSEMBLE!r}, tensors(is_stream=True)),))):
    print("token", flush=True)
"""
    command = [sys.executable, "-c", script]
    with cancels(stack, PACED_MODEL), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "token\n"
        os.kill(process.pid, signal.SIGKILL)


def test_the_others_go_on(stack: Stack) -> None:
    other = stack.stream(ENSEMBLE, tensors(is_stream=True, max_tokens=60))
    next(other)
    with cancels(stack, PACED_MODEL):
        call = stack.stream(ENSEMBLE, tensors(is_stream=True))
        next(call)
        call.cancel()
    responses = list(other)
    assert not any(response.error_message for response in responses)
    last = {output.name for output in responses[-1].infer_response.outputs}
    assert "finish_reason" in last


def test_disconnect_checks_of_a_request_without_stream_are_invisible_to_its_client(stack: Stack) -> None:
    # A token every 10 ms without a response: the engine checks about ten times whether the client is there.
    [answer] = stack.infer(ENSEMBLE, tensors(is_stream=False, max_tokens=100))
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
    calls = [stack.stream(ENSEMBLE, tensors(is_stream=True)) for _ in range(MAX_SEQUENCES)]
    for call in calls:
        next(call)
    yield
    for call in calls:
        call.cancel()
