"""Streams of deliveries on the real server: shared by what streams at a time, and gone with whoever read them."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from frontend.triton.client import TritonClient
from frontend.triton.messages import tensors_from_response
from model_repository import contract
from model_repository.deliveries import DeliveredChunks
from model_repository.errors import DeliveriesNotOpen, error_from_message
from model_repository.generation import FinishReason, GenerationChunk, GenerationRequest, SamplingParams, TextPrompt
from model_repository.request_tensors import request_to_tensors
from model_repository.tensors import array
from tests.integration.api import ANSWER, chat_text
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack
from tests.launching import KEY_OF_ALL
from tests.waiting import wait_until

SLUG = contract.model_id_to_slug(PACED_MODEL)


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """Begin and end with an idle engine."""
    stack.wait_until_idle(PACED_MODEL)
    yield
    stack.wait_until_idle(PACED_MODEL)


def request(prompt: str = "Hello", **fields: Any) -> GenerationRequest:
    """Return a streamed request, greedy, of fifteen seconds on the paced model."""
    values: dict[str, Any] = {"max_tokens": 1500, "cancel_key": secrets.token_hex(8)} | fields
    return GenerationRequest(
        prompt=TextPrompt(prompt), sampling=SamplingParams(temperature=0.0), is_stream=True, **values
    )


@asynccontextmanager
async def frontend_of(stack: Stack) -> AsyncIterator[TritonClient]:
    """A second frontend, as far as Triton sees it."""
    client = TritonClient(stack.endpoint, key=KEY_OF_ALL)
    try:
        yield client
    finally:
        await client.close()


async def text_of(client: TritonClient, slug: str, asked: GenerationRequest) -> str:
    """Return a whole completion."""
    async with aclosing(client.generate(slug, asked)) as chunks:
        return "".join([chunk.text async for chunk in chunks])


async def test_streams_at_a_time_share_deliveries(stack: Stack) -> None:
    num_streams, num_tokens = 32, 30
    before = stack.stats(PACED_MODEL)
    body = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": num_tokens, "stream": True}

    async def streamed() -> bytes:
        async with session.post(f"{stack.url}/v1/completions", json=body) as response:
            return await response.read()

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(streamed() for _ in range(num_streams)))
    after = stack.stats(PACED_MODEL)
    assert all(answer.endswith(b"data: [DONE]\n\n") and b'"length"' in answer for answer in answers)
    num_releases = after.num_delivered - before.num_delivered
    assert num_streams < num_releases <= num_streams * num_tokens
    assert after.num_deliveries - before.num_deliveries < 2 * num_releases / MAX_SEQUENCES


async def test_a_killed_frontend_frees_its_sequences_and_nobody_elses(stack: Stack) -> None:
    script = f"""
import asyncio
from tests.integration.test_deliveries import *

async def read(client):
    async with aclosing(client.generate({SLUG!r}, request())) as chunks:
        async for chunk in chunks:
            print("token", flush=True)

async def main():
    print("ready", flush=True)
    input()
    client = TritonClient({stack.endpoint!r})
    await asyncio.gather(*(read(client) for _ in range({MAX_SEQUENCES + 1})))

asyncio.run(main())
"""
    num_cancelled = stack.stats(PACED_MODEL).num_cancelled
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"  # before the two seconds of the other stream begin
    async with (
        frontend_of(stack) as other,
        aclosing(other.generate(SLUG, request(max_tokens=200))) as chunks,
    ):
        await anext(chunks)
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"token\n"
        await asyncio.to_thread(
            wait_until, lambda: stack.stats(PACED_MODEL).num_waiting == 2, "all were taken, two of them wait"
        )
        process.kill()
        await process.wait()
        rest = [chunk async for chunk in chunks]
    assert rest[-1].finish_reason is FinishReason.LENGTH
    assert rest[-1].usage is not None
    assert rest[-1].usage.num_output_tokens == 200
    stack.wait_until_idle(PACED_MODEL)
    assert stack.stats(PACED_MODEL).num_cancelled - num_cancelled == MAX_SEQUENCES + 1


async def test_a_frontend_that_streams_leaves_the_others_streams_when_it_closes(stack: Stack) -> None:
    async with frontend_of(stack) as stays:
        running = asyncio.create_task(text_of(stays, SLUG, request(max_tokens=100)))
        async with frontend_of(stack) as leaves:
            await text_of(leaves, SLUG, request(max_tokens=3))
        assert await running == await text_of(stays, SLUG, request(max_tokens=100))


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_engine_is_unloaded_although_frontends_have_streams_of_it(stack: Stack, is_open: bool) -> None:
    """Triton waits for requests under way, and a stream is one: the old engine stayed in memory beside the new one.

    So it did, without any stream, where a call for the engine's stats was cancelled a moment before its end.
    """
    engine = contract.stage_name(SLUG, "engine")
    async with frontend_of(stack) as operator, frontend_of(stack) as client:
        text = await text_of(client, SLUG, request(max_tokens=3))
        if not is_open:
            await client.close()
        await operator.unload(engine)
        await asyncio.to_thread(wait_until, lambda: not stack.processes(engine), "the engine's process has ended")
        await operator.load(SLUG, engine)
        assert await text_of(operator if not is_open else client, SLUG, request(max_tokens=3)) == text


def test_a_bare_grpc_client_reads_many_sequences_in_one_stream(stack: Stack) -> None:
    key = secrets.token_hex(16)
    deliveries = stack.stream(
        contract.stage_name("demo", contract.DELIVERIES),
        {contract.OPEN_DELIVERIES.name: array(contract.OPEN_DELIVERIES, key)},
    )
    assert _delivered(next(deliveries)) == DeliveredChunks(0)
    for number in (1, -7):
        asked = request(chat_text("Count from 1 to 9."), max_tokens=40, delivery_key=key, delivery_number=number)
        assert stack.infer("demo", dict(request_to_tensors(asked))) == []
    texts, finished, serial = {1: "", -7: ""}, set[int](), 0
    while len(finished) < 2:
        delivered = _delivered(next(deliveries))
        serial += 1
        assert delivered.serial == serial
        for number, chunk in delivered.items:
            assert isinstance(chunk, GenerationChunk)
            texts[number] += chunk.text
            if chunk.finish_reason is not None:
                finished.add(number)
    assert texts == {1: ANSWER, -7: ANSWER}
    deliveries.cancel()


def test_a_request_for_a_stream_that_is_not_open_is_refused_by_its_own_call(stack: Stack) -> None:
    asked = request(delivery_key="nobody's", delivery_number=1)
    [response] = stack.stream(SLUG, dict(request_to_tensors(asked)))
    assert isinstance(error_from_message(response.error_message), DeliveriesNotOpen)


async def test_a_frontend_finds_the_engine_that_another_one_had_loaded_anew(stack: Stack) -> None:
    """Its stream was the dead engine's: requests failed until the next look at the engine's epoch."""
    epoch = stack.stats(PACED_MODEL).epoch
    async with frontend_of(stack) as client:
        text = await text_of(client, SLUG, request(max_tokens=3))
        stack.kill_stage(contract.stage_name(SLUG, "engine"))
        await asyncio.to_thread(wait_until, lambda: _epoch(stack) not in (None, epoch), "it is loaded anew")
        assert await text_of(client, SLUG, request(max_tokens=3)) == text


def _epoch(stack: Stack) -> int | None:
    """Return the paced engine's, None while it does not answer."""
    try:
        return stack.stats(PACED_MODEL).epoch
    except (AssertionError, ValueError):
        return None


def _delivered(response: Any) -> DeliveredChunks:
    assert not response.error_message
    return DeliveredChunks.from_tensors(tensors_from_response(response.infer_response))
