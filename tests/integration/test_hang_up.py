"""A client that hangs up, over HTTP or gRPC and in any phase, frees its sequences; other requests go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import INPUTS, model_id_to_ensemble
from tests.integration.stack import MAX_SEQUENCES_ALONE, PACED_MODEL, Stack
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)


@pytest.fixture(autouse=True)
def idle(paced_stack: Stack) -> Iterator[None]:
    """Begin and end with an idle engine."""
    paced_stack.wait_until_idle(PACED_MODEL)
    yield
    paced_stack.wait_until_idle(PACED_MODEL)


@contextmanager
def cancels(stack: Stack, num_sequences: int = 1) -> Iterator[None]:
    """Require that the block cancels exactly this number of sequences."""
    before = stack.stats(PACED_MODEL).num_cancelled
    yield
    wait_until(lambda: stack.stats(PACED_MODEL).num_cancelled >= before + num_sequences, "the sequences are cancelled")
    assert stack.stats(PACED_MODEL).num_cancelled == before + num_sequences


@pytest.mark.parametrize("is_stream", [True, False])
async def test_http_running_and_queued(paced_stack: Stack, is_stream: bool) -> None:
    num_choices = MAX_SEQUENCES_ALONE + 2  # two of them wait
    body = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1500, "stream": is_stream, "n": num_choices}

    def are_there() -> bool:
        stats = paced_stack.stats(PACED_MODEL)
        return (stats.num_active, stats.num_waiting) == (MAX_SEQUENCES_ALONE, 2)

    with cancels(paced_stack, num_choices):
        async with aiohttp.ClientSession() as session:
            posted = asyncio.create_task(session.post(f"{paced_stack.url}/v1/completions", json=body))
            await asyncio.to_thread(wait_until, are_there, "all were taken")
            if posted.done():  # a stream begins before its first token
                posted.result().close()
            posted.cancel()
            await asyncio.gather(posted, return_exceptions=True)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_cancelled_grpc_call_beside_another_that_goes_on(paced_stack: Stack, is_stream: bool) -> None:
    with cancels(paced_stack):
        call = paced_stack.stream(ENSEMBLE, tensors(is_stream=is_stream))
        wait_until(lambda: paced_stack.stats(PACED_MODEL).num_active == 1, "it runs")
        other = paced_stack.stream(ENSEMBLE, tensors(is_stream=True, max_tokens=60))
        next(other)
        call.cancel()
    responses = list(other)
    assert not any(response.error_message for response in responses)
    assert "finish_reason" in {output.name for output in responses[-1].infer_response.outputs}


def test_a_killed_grpc_client_frees_its_sequence(paced_stack: Stack) -> None:
    script = f"""
import sys, grpc
from tritonclient.grpc import service_pb2_grpc
from tests.grpc_messages import infer_request
from tests.integration.test_hang_up import tensors
stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel({paced_stack.endpoint!r}))
for _ in stub.ModelStreamInfer(iter((infer_request({ENSEMBLE!r}, tensors(is_stream=True)),))):
    print("token", flush=True)
"""
    command = [sys.executable, "-c", script]
    with cancels(paced_stack), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "token\n"
        os.kill(process.pid, signal.SIGKILL)


def tensors(*, is_stream: bool, max_tokens: int = 1500) -> dict[str, Any]:
    """What a bare gRPC client sends."""
    return {
        "text_input": tensor(INPUTS["text_input"], "Hello"),
        "max_tokens": tensor(INPUTS["max_tokens"], max_tokens),
        "stream": tensor(INPUTS["stream"], is_stream),
    }
