"""Output streams on the real server: sequences share them, and their end cancels the reader's sequences."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest

from frontend.triton.client import TritonClient
from model_repository.contract.request import GenerationRequest, Params, SamplingParams, TextPrompt
from model_repository.contract.tensors import (
    model_id_to_ensemble,
    stage_name,
)
from tests.frontend.triton.generating import generated
from tests.integration.api import COMPLETIONS, Api
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack
from tests.launching import KEY_OF_ALL
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """Begin and end with an idle engine, to which the stack's own frontend sends requests: it tries a new one first."""
    stack.wait_until_idle(PACED_MODEL)
    yield
    asked = {"model": PACED_MODEL, "prompt": "a", "max_tokens": 1}
    wait_until(lambda: Api(stack.url).post(COMPLETIONS, asked).status == 200, "the frontend sends requests")
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
    async with aclosing(generated(client, asked, ensemble)) as chunks:
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
