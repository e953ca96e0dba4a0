"""What ends a call to a model, what becomes of its requests then, and what comes too late for a request."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest

from frontend import errors
from frontend.triton import call
from frontend.triton.client import TritonClient
from model_repository.contract.codec import pack
from model_repository.contract.output import ChunkBatch, GenerationChunk
from model_repository.contract.tensors import CHUNK_BATCH, STATS
from model_repository.errors import OutputStreamNotOpen
from tests.fakes import chunks
from tests.frontend.triton.generating import (
    CANCEL,
    REQUEST,
    completion_of,
    failure_of,
    generated,
    running,
    text,
    the_stream,
)
from tests.frontend.triton.server import FakeTritonServer, infer_message
from tests.frontend.triton.test_failures import DOWN
from tests.waiting import DEADLINE_S, wait_until


async def test_a_stream_that_the_engine_ends_is_half_closed_and_requests_under_way_go_to_another(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """A request that crossed with the end of a stream that was idle for a while was answered with a failure."""
    server.script = list(chunks("a"))
    await completion_of(client)
    server.take.clear()
    server.started.clear()
    under_way = [asyncio.create_task(completion_of(client)) for _ in range(2)]
    await asyncio.wait_for(server.started.wait(), DEADLINE_S)
    the_stream(server).end()
    await asyncio.wait_for(server.half_closed.wait(), DEADLINE_S)
    server.take.set()
    assert await asyncio.gather(*under_way) == [chunks("a")] * 2
    assert server.num_opened == 2
    assert [batch.numbers for batch in server.batches] == [[1], [2, 3], [1, 2]]


async def test_a_stream_that_ends_with_a_batch_fails_its_requests_at_once(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """Triton calls a batch final that is on its way when the engine ends the stream: its requests hung for 72 s."""
    async with running(server, client) as tasks:
        the_stream(server).put(is_last=True)
        failures = await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
        assert [type(each) for each in failures] == [errors.EngineFailed] * 2
    server.script = list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 2


async def test_a_stream_is_kept_open_while_requests_wait_in_the_tokenizer(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine grammars took longer than the engine keeps an unused stream, and their requests failed."""
    monkeypatch.setattr(call, "KEEPALIVE_INTERVAL_S", 0.01)
    server.script = []
    waiting = asyncio.create_task(completion_of(client))
    await asyncio.to_thread(wait_until, lambda: len(server.batches) >= 3, "empty batches come")
    assert [batch.numbers for batch in server.batches[:3]] == [[1], [], []]
    the_stream(server).put(*((1, chunk) for chunk in chunks("a")))
    assert await waiting == chunks("a")
    await asyncio.sleep(0.05)
    num_batches = len(server.batches)
    await asyncio.sleep(0.1)
    assert len(server.batches) == num_batches  # no request is waiting


async def test_a_lost_output_batch_fails_all_and_closes_the_stream(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client) as tasks:
        stream = the_stream(server)
        stream.put((1, text("b")), num_lost=1)
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.EngineFailed] * 2
        await asyncio.wait_for(stream.ended.wait(), DEADLINE_S)  # so that the engine notices


async def test_an_error_of_the_stream_fails_all_and_closes_it(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client) as tasks:
        stream = the_stream(server)
        stream.fail(DOWN.format("demo__detokenizer"))
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.StageUnhealthy] * 2
        await asyncio.wait_for(stream.ended.wait(), DEADLINE_S)
    stage, message = await asyncio.wait_for(server.controls.get(), DEADLINE_S)  # the engine lives
    assert (stage, message) == (CANCEL[0], {"cancel_keys": [REQUEST.params.cancel_key] * 2})


GARBAGE: dict[str, Any] = {
    "noise": b"\xff" * 100,
    "no batch": infer_message(CHUNK_BATCH, b"\xc1"),
    "another tensor": infer_message(STATS, b"{}"),
    "repeated": infer_message(CHUNK_BATCH, pack(ChunkBatch(0, ()))),
    "wrong type": infer_message(CHUNK_BATCH, pack(ChunkBatch(2, ((1, GenerationChunk(text="x", token_ids=5)),)))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_an_error_of_all_requests_and_the_next_one_opens_another_stream(
    server: FakeTritonServer, client: TritonClient, garbage: Any
) -> None:
    async with running(server, client) as tasks:
        the_stream(server).responses.put_nowait(garbage)
        assert all(isinstance(each, errors.APIError) for each in await asyncio.gather(*tasks))
    server.script = list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 2


@pytest.mark.parametrize(("stage", "is_closed"), [("engine", True), ("detokenizer", True), ("tokenizer", False)])
async def test_a_lost_stage_closes_the_stream_unless_it_is_the_tokenizer(
    server: FakeTritonServer, client: TritonClient, stage: str, is_closed: bool
) -> None:
    server.script = list(chunks("a"))
    await completion_of(client)
    client.generations.abort(f"demo__{stage}", errors.EngineFailed())
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 1 + is_closed


async def test_a_call_without_batches_for_too_long_ends_with_its_requests(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client) as tasks:
        generations, error = client.generations, errors.EngineFailed("silent")
        assert generations.end_silent("demo", 60.0, error) == generations.end_silent("other", 0.0, error) == 0
        assert generations.end_silent("demo", 0.0, error) == 2
        assert await asyncio.gather(*tasks) == [error] * 2


async def test_an_engine_that_does_not_know_the_stream_gets_another_and_the_requests_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """Another frontend had it loaded anew: requests failed until this one saw its new epoch."""
    async with running(server, client) as others:
        server.streams.clear()
        server.script = list(chunks("a"))
        assert await asyncio.gather(*(completion_of(client) for _ in range(3))) == [chunks("a")] * 3
        assert [type(each) for each in await asyncio.gather(*others)] == [errors.EngineFailed] * 2
    assert server.num_opened == 2


async def test_an_engine_that_never_knows_the_stream_gets_a_request_twice(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.refusal = OutputStreamNotOpen("no stream", "request_batch").message()
    assert isinstance(await failure_of(client), errors.EngineFailed)
    assert len(server.requests) == 2


async def test_outputs_after_a_finish_or_a_leave_are_not_read(server: FakeTritonServer, client: TritonClient) -> None:
    rest = asyncio.Event()
    server.script = [*chunks("a"), text("at once"), rest, text("later")]
    assert await completion_of(client) == chunks("a")
    server.script = [text("a"), rest, *chunks("b")]
    async with aclosing(generated(client)) as generation:
        await anext(generation)
    rest.set()
    server.script = list(chunks("c"))
    assert await completion_of(client) == chunks("c")


async def test_closing_ends_the_stream_and_its_readers(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client) as tasks:
        stream = the_stream(server)
        await client.close()
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.TritonUnreachable] * 2
        await asyncio.wait_for(stream.ended.wait(), DEADLINE_S)


async def test_keys_are_long_differ_and_stay_out_of_the_log(
    server: FakeTritonServer, client: TritonClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = set[str]()
    for _ in range(3):
        async with running(server, client):
            keys |= server.streams.keys()
            the_stream(server).fail("something went wrong")
    assert len(keys) == 3
    assert all(len(key) == 32 and key not in caplog.text for key in keys)


async def test_requests_that_were_begun_on_the_engine_of_an_epoch_can_be_spared(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client) as tasks:
        assert client.generations.abort("demo__engine", errors.EngineFailed("lost"), spared_epoch=server.epoch) == 0
        assert client.generations.abort("demo__engine", errors.EngineFailed("lost"), spared_epoch=server.epoch + 1) == 2
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.EngineFailed] * 2


@pytest.mark.parametrize("how", ["closed", "failed by Triton"])
async def test_nothing_of_a_call_is_left_when_it_has_ended(
    server: FakeTritonServer, client: TritonClient, how: str
) -> None:
    # grpc leaves the task that sends the messages where the call was over before it was cancelled.
    await client.engine_stats("demo", 10)
    before = len(asyncio.all_tasks())
    async with running(server, client):
        if how == "closed":
            client.generations.end_all(errors.EngineFailed())
        else:
            the_stream(server).fail("[engine_failed] broken")
    await client.close()
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  # tasks of grpc's have no event
            await asyncio.sleep(0.01)
