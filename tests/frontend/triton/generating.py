"""Requests that several tests send, and generations of them at a client that is connected to the fake server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from frontend.errors import APIError
from frontend.triton.client import TritonClient
from model_repository.contract.output import Chunk, GenerationChunk
from model_repository.contract.request import GenerationRequest, Params, SamplingParams, TextPrompt
from tests.frontend.triton.server import FakeTritonServer, OutputStream, Script

REQUEST = GenerationRequest(
    prompt=TextPrompt("Grüße 🙂"),
    params=Params(
        max_tokens=5,
        sampling=SamplingParams(temperature=0.5, top_k=3, seed=2**64 - 1, logit_bias={5: -100.0}),
        stop=("a", "é"),
        has_logprobs=True,
        num_top_logprobs=2,
        has_token_ids=True,
        is_stream=True,
        cancel_key="k" * 32,
    ),
    images=(b"\x89PNG\0\xff", b""),
)


def with_params(**params: Any) -> GenerationRequest:
    """Return REQUEST with other parameters."""
    return replace(REQUEST, params=replace(REQUEST.params, **params))


WHOLE = with_params(is_stream=False)
CANCEL = ("demo__engine", {"cancel_keys": [REQUEST.params.cancel_key]})  # what the engine gets to cancel any of them


def endless() -> Script:
    """Return the beginning of a completion that never ends. Its event belongs to the event loop of the test."""
    return [GenerationChunk(text="a"), asyncio.Event()]


def said(chunk: Chunk) -> str:
    """Return the text of a chunk of a completion."""
    assert isinstance(chunk, GenerationChunk)
    return chunk.text


def text(value: str) -> GenerationChunk:
    """Return a chunk that says nothing but its text."""
    return GenerationChunk(text=value)


async def generated(
    client: TritonClient, request: GenerationRequest = REQUEST, ensemble: str = "demo"
) -> AsyncGenerator[GenerationChunk, None]:
    """Yield the chunks of a completion."""
    async with client.generations.running(ensemble, request) as attempt:
        is_last = False
        while not is_last:
            chunk = await attempt.get()
            assert isinstance(chunk, GenerationChunk)
            is_last = chunk.finish_reason is not None
            yield chunk


async def completion_of(client: TritonClient, request: GenerationRequest = REQUEST) -> list[GenerationChunk]:
    """Return a completion."""
    async with aclosing(generated(client, request)) as generation:
        return [chunk async for chunk in generation]


async def failure_of(client: TritonClient, request: GenerationRequest = REQUEST) -> APIError:
    """Return the error of a request that fails."""
    with pytest.raises(APIError) as caught:
        await completion_of(client, request)
    return caught.value


def the_stream(server: FakeTritonServer) -> OutputStream:
    """Return the only open output stream."""
    [stream] = server.streams.values()
    return stream


@asynccontextmanager
async def running(
    server: FakeTritonServer, client: TritonClient, num: int = 2
) -> AsyncIterator[list[asyncio.Task[APIError]]]:
    """Run some generations that have begun and come to no end; every one must fail within the block."""
    server.script = endless()
    generations = [generated(client) for _ in range(num)]
    for generation in generations:
        assert await anext(generation) == text("a")

    async def fail(generation: AsyncIterator[GenerationChunk]) -> APIError:
        with pytest.raises(APIError) as caught:
            await anext(generation)
        return caught.value

    tasks = [asyncio.create_task(fail(generation)) for generation in generations]
    yield tasks
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
