"""Output streams on the real server: sequences share them, and their end cancels the reader's sequences."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from msgspec.structs import replace

from frontend.triton.client import TritonClient
from model_repository.contract.codec import message_tensor, pack, payload_of, unpack
from model_repository.contract.output import ChunkBatch, FinishReason
from model_repository.contract.request import GenerationRequest, Params, RequestBatch, SamplingParams, TextPrompt
from model_repository.contract.tensors import (
    CHUNK_BATCH,
    OPEN_STREAM,
    OUTPUTS,
    REQUEST_BATCH,
    REQUESTS,
    model_id_to_ensemble,
    stage_name,
)
from model_repository.errors import OutputStreamNotOpen, UnknownAdapter, error_from_message
from tests.grpc_messages import tensors_from_response
from tests.integration.api import ANSWER, chat_text
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack
from tests.launching import KEY_OF_ALL
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """Begin and end with an idle engine."""
    stack.wait_until_idle(PACED_MODEL)
    yield
    stack.wait_until_idle(PACED_MODEL)


def request(prompt: str = "Hello", **fields: Any) -> GenerationRequest:
    """Return a streamed request, greedy, of fifteen seconds on the paced model."""
    values: dict[str, Any] = {"max_tokens": 1500, "cancel_key": secrets.token_hex(8)} | fields
    params = Params(sampling=SamplingParams(temperature=0.0), is_stream=True, **values)
    return GenerationRequest(prompt=TextPrompt(prompt), params=params)


@asynccontextmanager
async def frontend_of(stack: Stack) -> AsyncIterator[TritonClient]:
    """A second frontend, as far as Triton sees it."""
    client = TritonClient(stack.endpoint, key=KEY_OF_ALL)
    try:
        yield client
    finally:
        await client.close()


async def text_of(client: TritonClient, ensemble: str, asked: GenerationRequest) -> str:
    """Return a whole completion."""
    async with aclosing(client.generations.generate(ensemble, asked)) as chunks:
        return "".join([chunk.text async for chunk in chunks])


async def test_sequences_share_output_batches(stack: Stack) -> None:
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
    num_items = after.num_output_items - before.num_output_items
    assert num_streams < num_items <= num_streams * num_tokens
    assert after.num_output_batches - before.num_output_batches < 2 * num_items / MAX_SEQUENCES


async def test_a_killed_frontend_frees_only_its_own_sequences(stack: Stack) -> None:
    script = f"""
import asyncio
from tests.integration.test_output_streams import *

async def read(client):
    async with aclosing(client.generations.generate({ENSEMBLE!r}, request())) as chunks:
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
        aclosing(other.generations.generate(ENSEMBLE, request(max_tokens=200))) as chunks,
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
        running = asyncio.create_task(text_of(stays, ENSEMBLE, request(max_tokens=100)))
        async with frontend_of(stack) as leaves:
            await text_of(leaves, ENSEMBLE, request(max_tokens=3))
        assert await running == await text_of(stays, ENSEMBLE, request(max_tokens=100))


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_engine_is_unloaded_although_frontends_have_streams_of_it(stack: Stack, is_open: bool) -> None:
    """Triton waits for requests under way, and a stream is one: the old engine stayed in memory beside the new one.

    So it did, without any stream, where a call for the engine's stats was cancelled a moment before its end.
    """
    engine = stage_name(ENSEMBLE, "engine")
    async with frontend_of(stack) as operator, frontend_of(stack) as client:
        text = await text_of(client, ENSEMBLE, request(max_tokens=3))
        if not is_open:
            await client.close()
        await operator.repository.unload(engine)
        await asyncio.to_thread(wait_until, lambda: not stack.processes(engine), "the engine's process has ended")
        await operator.repository.load(ENSEMBLE, engine)
        assert await text_of(operator if not is_open else client, ENSEMBLE, request(max_tokens=3)) == text


def test_a_bare_grpc_client_reads_many_sequences_in_one_stream(stack: Stack) -> None:
    key = secrets.token_hex(16)
    outputs = stack.stream(stage_name("demo", OUTPUTS), message_tensor(OPEN_STREAM, key.encode()))
    assert _chunks(next(outputs)) == ChunkBatch(0)
    asked = request(chat_text("Count from 1 to 9."), max_tokens=40)
    refused = request("Hello", lora_name="unknown")
    other = replace(asked, params=replace(asked.params, cancel_key="another"))
    batch = RequestBatch(key, ((1, asked), (5, refused), (-7, other)))
    assert stack.infer(stage_name("demo", REQUESTS), message_tensor(REQUEST_BATCH, pack(batch))) == []
    texts, ended, serial = {1: "", -7: "", 5: ""}, set[int](), 0
    while len(ended) < 3:
        chunks = _chunks(next(outputs))
        serial += 1
        assert chunks.serial == serial
        for number, item in chunks.items:
            if isinstance(item, str) or item.finish_reason is not None:
                ended.add(number)
            texts[number] += item if isinstance(item, str) else item.text
    assert isinstance(error_from_message(texts.pop(5)), UnknownAdapter)
    assert texts == {1: ANSWER, -7: ANSWER}
    outputs.cancel()


def test_requests_for_a_stream_that_is_not_open_are_refused_by_their_own_call(stack: Stack) -> None:
    batch = RequestBatch("unknown", ((1, request()),))
    [response] = stack.stream(stage_name(ENSEMBLE, REQUESTS), message_tensor(REQUEST_BATCH, pack(batch)))
    assert isinstance(error_from_message(response.error_message), OutputStreamNotOpen)


async def test_a_frontend_finds_the_engine_that_another_one_had_loaded_anew(stack: Stack) -> None:
    """Its stream belonged to the dead engine: requests failed until the next check of the engine's epoch."""
    epoch = stack.stats(PACED_MODEL).epoch
    async with frontend_of(stack) as client:
        text = await text_of(client, ENSEMBLE, request(max_tokens=3))
        stack.kill_stage(stage_name(ENSEMBLE, "engine"))
        await asyncio.to_thread(wait_until, lambda: _epoch(stack) not in (None, epoch), "it is loaded anew")
        assert await text_of(client, ENSEMBLE, request(max_tokens=3)) == text


def _epoch(stack: Stack) -> int | None:
    """Return the paced engine's, None while it does not answer."""
    stack.start_again_if_ended()
    try:
        return stack.stats(PACED_MODEL).epoch
    except (AssertionError, ValueError, grpc.RpcError):
        return None


def _chunks(response: Any) -> ChunkBatch:
    assert not response.error_message
    return unpack(ChunkBatch, payload_of(tensors_from_response(response.infer_response), CHUNK_BATCH), "chunk_batch")
