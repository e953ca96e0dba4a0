"""Generations over the connection to Triton: what is sent and read, and that leaving one cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from frontend import errors
from frontend.triton.client import TritonClient
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.contract.request import (
    GenerationRequest,
)
from tests.fakes import chunks
from tests.frontend.triton.generating import CANCEL, REQUEST, WHOLE, completion_of, endless, failure_of, generated
from tests.frontend.triton.server import FakeTritonServer
from tests.frontend.triton.test_failures import DOWN
from tests.waiting import DEADLINE_S, wait_until

BOTH = pytest.mark.parametrize("asked", [REQUEST, WHOLE], ids=["streamed", "whole"])


async def begun(
    client: TritonClient, generation: AsyncGenerator[GenerationChunk, None], asked: GenerationRequest
) -> asyncio.Task[GenerationChunk]:
    """Wait for the first chunk of the only generation, and return its reader."""
    if asked.params.is_stream:
        await anext(generation)
    reader = asyncio.ensure_future(anext(generation))

    def is_begun() -> bool:
        calls = client.generations._calls.get("demo", ())
        return any(not queue.is_waiting for call in calls for queue in call._queues.values())

    await asyncio.to_thread(wait_until, is_begun, "the first chunk")
    return reader


@BOTH
async def test_chunks_arrive_as_the_stages_sent_them(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    sent = chunks("Grüße", " 🙂", "", finish_reason=FinishReason.LENGTH)
    server.script = list(sent)
    *pieces, last = await completion_of(client, asked)
    assert "".join(each.text for each in (*pieces, last)) == "Grüße 🙂"
    assert (replace(last, text=""), bool(pieces)) == (sent[-1], asked.params.is_stream)


@BOTH
async def test_the_word_that_the_engine_has_a_request_is_no_chunk(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    server.script = [GenerationChunk(text=""), *chunks("a")]
    assert await completion_of(client, asked) == chunks("a")


@BOTH
async def test_a_finished_generation_is_not_cancelled(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    server.script = list(chunks("a"))
    await completion_of(client, asked)
    await client.engine_stats("demo", timeout_s=10)
    assert server.controls.empty()


async def test_closing_waits_until_the_cancels_are_sent(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = endless()
    async with aclosing(generated(client)) as generation:
        await anext(generation)
    await client.close()
    assert server.controls.qsize() == 1


@BOTH
async def test_an_aborted_generation_raises_the_error_and_sends_nothing_to_the_dead(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    server.script = endless()
    async with aclosing(generated(client, asked)) as generation:
        ending = await begun(client, generation, asked)
        assert client.generations.abort("other__engine", errors.EngineFailed()) == 0
        assert client.generations.abort("demo__engine", errors.EngineFailed("lost")) == 1
        with pytest.raises(errors.EngineFailed, match="lost"):
            await ending
    await client.engine_stats("demo", timeout_s=10)
    assert server.controls.empty()
    assert client.generations.abort("demo__engine", errors.EngineFailed()) == 0


@BOTH
async def test_a_lost_tokenizer_ends_unstarted_requests_and_a_lost_detokenizer_all(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    server.script = endless()
    async with aclosing(generated(client, asked)) as generation:
        ending = await begun(client, generation, asked)
        server.script = [asyncio.Event()]
        server.started.clear()
        server.take.clear()
        waiting = asyncio.create_task(completion_of(client, asked))
        await asyncio.wait_for(server.started.wait(), DEADLINE_S)
        assert client.generations.abort("demo__tokenizer", errors.EngineFailed("tokenizer")) == 1
        with pytest.raises(errors.EngineFailed, match="tokenizer"):
            await waiting
        assert client.generations.abort("demo__detokenizer", errors.EngineFailed("detokenizer")) == 1
        with pytest.raises(errors.EngineFailed, match="detokenizer"):
            await ending
    # The engine lives, so it gets both; the first once more, since it may not have had the request at the first time.
    sent: list[str] = []
    while len(sent) < 3:
        _, message = await asyncio.wait_for(server.controls.get(), DEADLINE_S)
        sent += message["cancel_keys"]
    assert set(sent) == {asked.params.cancel_key}


@BOTH
async def test_an_error_behind_the_engine_cancels_the_sequence(
    server: FakeTritonServer, client: TritonClient, asked: GenerationRequest
) -> None:
    server.script = [GenerationChunk(text="a"), DOWN.format("demo__detokenizer")]
    assert isinstance(await failure_of(client, asked), errors.StageUnhealthy)
    assert await asyncio.wait_for(server.controls.get(), DEADLINE_S) == CANCEL
