"""The frontend's stream of deliveries: opened once, shared by what streams, and what becomes of all when it breaks."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from frontend import errors
from frontend.errors import APIError
from frontend.triton import deliveries
from frontend.triton.client import TritonClient
from model_repository.errors import DeliveriesNotOpen, InvalidRequest, Overloaded
from model_repository.generation import GenerationChunk
from tests.fakes import chunks
from tests.frontend.triton.server import FakeTritonServer, Script, Stream, listen, tensors_of
from tests.frontend.triton.test_failures import DOWN
from tests.frontend.triton.test_generate import REQUEST, WHOLE, completion_of, failure_of

ENDLESS: Script = [GenerationChunk(text="a"), asyncio.Event()]


def text(value: str) -> GenerationChunk:
    return GenerationChunk(text=value)


def the_stream(server: FakeTritonServer) -> Stream:
    """Return the only open stream."""
    [stream] = server.streams.values()
    return stream


@asynccontextmanager
async def running(server: FakeTritonServer, client: TritonClient, num: int = 2) -> AsyncIterator[list[asyncio.Task]]:
    """Run some generations that have begun and come to no end; every one must fail within the block."""
    server.script = list(ENDLESS)
    generations = [client.generate("demo", REQUEST) for _ in range(num)]
    for generation in generations:
        assert await anext(generation) == text("a")

    async def fail(generation) -> APIError:
        with pytest.raises(APIError) as caught:
            await anext(generation)
        return caught.value

    tasks = [asyncio.create_task(fail(generation)) for generation in generations]
    yield tasks
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)


# --- opening ----------------------------------------------------------------------------------------------------------


async def test_requests_share_one_stream_that_the_first_one_opens(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(chunks("a"))
    assert await asyncio.gather(*(completion_of(client) for _ in range(5))) == [chunks("a")] * 5
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 1
    numbers = [tensors_of(request)["delivery_number"].item() for request in server.requests]
    assert len(set(numbers)) == 6


async def test_after_many_deliveries_the_next_request_opens_another_stream_and_the_others_keep_theirs(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton keeps of each response of a request it keeps until the request ends."""
    monkeypatch.setattr(deliveries, "MAX_KEPT_BYTES", 10_000)
    async with running(server, client, 1) as others:
        [first] = server.streams.values()
        server.script = list(chunks("a"))
        num_opened = []
        for _ in range(5):  # two deliveries have come: that of the opening, and the first chunk
            assert await completion_of(client) == chunks("a")
            num_opened.append(server.num_opened)
        assert num_opened == [1, 1, 1, 2, 2]
        assert not others[0].done()
        client.abort("demo__engine", errors.EngineFailed("lost"))  # which ends both
        assert (await others[0]).message == "lost"
        await asyncio.wait_for(first.ended.wait(), 10)


async def test_requests_travel_on_the_call_that_brings_their_deliveries(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(chunks("a"))
    await asyncio.gather(*(completion_of(client, asked) for asked in (REQUEST, WHOLE, REQUEST)))
    assert (len(server.requests), server.num_calls) == (3, 1 + 1)  # the other asked for the engine's epoch


@pytest.mark.parametrize("refusal", ["", Overloaded("full").message()])
async def test_a_call_of_which_triton_keeps_much_is_closed_by_the_last_who_reads_it(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Triton keeps more of an error than of a delivery: refused requests alone filled its memory."""
    monkeypatch.setattr(deliveries, "MAX_KEPT_BYTES", 15_000)
    server.script, server.refusal = list(chunks("a")), refusal
    num_opened = 0
    while server.num_opened < 2:
        streams = list(server.streams.values())
        await (failure_of(client) if refusal else completion_of(client))
        num_opened += 1
    assert num_opened == (2 if refusal else 8)
    await asyncio.wait_for(streams[0].ended.wait(), 10)


async def test_each_model_has_a_stream_of_its_own(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = list(chunks("a"))
    for slug in ("one", "two", "one"):
        assert [chunk async for chunk in client.generate(slug, REQUEST)] == chunks("a")
    assert server.num_opened == 2


async def test_no_request_is_sent_before_the_stream_is_open(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = list(chunks("a"))
    is_open = asyncio.Event()
    server.opening = [is_open]
    waiting = [asyncio.create_task(completion_of(client)) for _ in range(2)]
    await asyncio.wait_for(server.opened.wait(), 10)
    assert not server.requests
    is_open.set()
    assert await asyncio.gather(*waiting) == [chunks("a")] * 2


async def test_a_stream_that_cannot_be_opened_fails_who_waits_and_the_next_one_tries_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.opening = [Overloaded("full").message()]
    failures = await asyncio.gather(*(failure_of(client) for _ in range(2)))
    assert [type(failure) for failure in failures] == [errors.Overloaded] * 2
    server.opening, server.script = [], list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert (server.num_opened, len(server.requests), server.controls.qsize()) == (2, 1, 0)


async def test_a_stage_that_is_found_dead_by_the_opening_is_told(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """Nobody else looks at the detokenizer: it stayed dead."""
    downs: list[str] = []
    client.on_stage_down = lambda stage, since: downs.append(stage)
    server.opening = [DOWN.format("demo__detokenizer")]
    assert isinstance(await failure_of(client), errors.StageUnhealthy)
    assert downs == ["demo__detokenizer"]


async def test_who_leaves_while_the_stream_opens_leaves_it_to_the_others(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(chunks("a"))
    is_open = asyncio.Event()
    server.opening = [is_open]
    leaves, stays = (asyncio.create_task(completion_of(client)) for _ in range(2))
    await asyncio.wait_for(server.opened.wait(), 10)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    is_open.set()
    assert await stays == chunks("a")
    assert (server.num_opened, server.controls.qsize()) == (1, 0)  # the engine was never asked for the other


async def test_an_engine_that_is_lost_while_the_stream_opens_fails_who_waits(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.opening = [asyncio.Event()]
    waiting = asyncio.create_task(failure_of(client))
    await asyncio.wait_for(server.opened.wait(), 10)
    client.abort("demo__engine", errors.EngineFailed("lost"))
    assert (await asyncio.wait_for(waiting, 10)).message == "lost"


# --- what ends a request alone ----------------------------------------------------------------------------------------


async def test_a_request_that_is_refused_fails_alone(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client, 1) as others:
        server.refusal = InvalidRequest("9 is too much", "max_tokens").message()
        assert (await failure_of(client)).param == "max_tokens"
        server.refusal = Overloaded("full").message()
        assert type(await failure_of(client)) is errors.Overloaded
        assert not others[0].done()
        assert server.controls.empty()  # the engine took neither
        the_stream(server).end()


async def test_an_error_of_one_number_is_nobody_elses(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client, 1) as others:
        server.script = [text("x"), InvalidRequest("nothing can follow", "stop_words").message()]
        assert (await failure_of(client)).param == "stop"
        assert not others[0].done()
        the_stream(server).end()


async def test_what_comes_for_who_has_left_is_not_read(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = list(ENDLESS)
    generation = client.generate("demo", REQUEST)
    await anext(generation)
    await generation.aclose()
    the_stream(server).put((1, text("b")), (77, text("c")), (77, "[engine_failed] x"))
    server.script = list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 1


async def test_a_request_that_is_taken_after_its_reader_has_left_is_cancelled_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """The engine remembers a cancel that overtakes its request, but not for ever."""
    server.script = [GenerationChunk(text=""), asyncio.Event()]
    server.take.clear()
    leaves = asyncio.create_task(completion_of(client))
    await asyncio.wait_for(server.started.wait(), 10)
    leaves.cancel()
    assert (await asyncio.wait_for(server.controls.get(), 10))[1] == {"cancel_key": REQUEST.cancel_key}
    server.take.set()
    assert (await asyncio.wait_for(server.controls.get(), 10))[1] == {"cancel_key": REQUEST.cancel_key}


async def test_a_request_that_the_engine_has_survives_the_tokenizer(
    server: FakeTritonServer, client: TritonClient
) -> None:
    is_over = asyncio.Event()
    server.script = [text(""), is_over, *chunks("a")]  # at first what is told of a request that waits for its turn
    waits = asyncio.create_task(completion_of(client))
    await asyncio.wait_for(server.started.wait(), 10)
    server.script = list(chunks("b"))
    assert await completion_of(client) == chunks("b")  # in a later delivery
    assert client.abort("demo__tokenizer", errors.EngineFailed()) == 0
    is_over.set()
    assert await waits == chunks("a")


# --- what ends all of them --------------------------------------------------------------------------------------------


async def test_a_stream_that_ends_fails_all_and_the_next_request_opens_another(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client) as tasks:
        the_stream(server).end()
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.EngineFailed] * 2
    server.script = list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 2


async def test_a_stream_that_the_engine_ends_is_half_closed_and_what_is_under_way_goes_to_another(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """A request that crossed with the end of a stream nobody had used for a while was answered with a failure."""
    server.script = list(chunks("a"))
    await completion_of(client)
    server.take.clear()
    server.started.clear()
    under_way = asyncio.create_task(completion_of(client))
    await asyncio.wait_for(server.started.wait(), 10)
    the_stream(server).end()
    await asyncio.wait_for(server.half_closed.wait(), 10)
    server.take.set()
    assert await under_way == chunks("a")
    assert server.num_opened == 2


async def test_a_lost_delivery_fails_all_and_closes_the_stream(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client) as tasks:
        stream = the_stream(server)
        stream.put((1, text("b")), num_lost=1)
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.EngineFailed] * 2
        await asyncio.wait_for(stream.ended.wait(), 10)  # so that the engine notices


async def test_an_error_of_the_stream_fails_all_and_closes_it(server: FakeTritonServer, client: TritonClient) -> None:
    downs: list[str] = []
    client.on_stage_down = lambda stage, since: downs.append(stage)
    async with running(server, client) as tasks:
        stream = the_stream(server)
        stream.fail(DOWN.format("demo__detokenizer"))
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.StageUnhealthy] * 2
        await asyncio.wait_for(stream.ended.wait(), 10)
    assert set(downs) == {"demo__detokenizer"}
    for _ in range(2):  # the engine lives
        assert (await asyncio.wait_for(server.controls.get(), 10))[1] == {"cancel_key": REQUEST.cancel_key}


async def test_a_delivery_that_cannot_be_read_fails_all(
    server: FakeTritonServer, client: TritonClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(server, client) as tasks:
        the_stream(server).put((1, GenerationChunk(text="x", token_ids=5)))  # type: ignore[arg-type]
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.BadAnswer] * 2
    assert "could not be read" in caplog.text


@pytest.mark.parametrize(("stage", "is_closed"), [("engine", True), ("detokenizer", True), ("tokenizer", False)])
async def test_a_lost_stage_closes_the_stream_unless_it_is_the_tokenizer(
    server: FakeTritonServer, client: TritonClient, stage: str, is_closed: bool
) -> None:
    server.script = list(chunks("a"))
    await completion_of(client)
    client.abort(f"demo__{stage}", errors.EngineFailed())
    assert await completion_of(client) == chunks("a")
    assert server.num_opened == 1 + is_closed


async def test_a_stream_that_is_silent_while_the_engine_works_is_stalled(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client):
        looks = [client.stalled_stages("demo", 1.0, 2.0) for _ in range(4)]
        assert looks == [set(), set(), set(), {"demo__detokenizer"}]  # the first one finds that something has come
        assert client.stalled_stages("other", 1.0, 2.0) == set()
        client.abort("demo__detokenizer", errors.EngineFailed())
        assert client.stalled_stages("demo", 1.0, 2.0) == set()


async def test_time_in_which_the_engine_was_not_at_work_stalls_nothing(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client):
        assert [client.stalled_stages("demo", 0.0, 2.0) for _ in range(4)] == [set()] * 4
        client.end_all(errors.EngineFailed())


async def test_a_request_that_nobody_takes_while_deliveries_come_is_stuck_in_the_tokenizer(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(ENDLESS)
    async with aclosing(client.generate("demo", REQUEST)) as taken:
        await anext(taken)
        server.take.clear()
        server.started.clear()
        waiting = asyncio.create_task(failure_of(client))
        await server.started.wait()
        looks = []
        for _ in range(4):
            the_stream(server).put((1, text("a")))
            await anext(taken)
            looks.append(client.stalled_stages("demo", 1.0, 2.0))
        assert looks == [set(), set(), set(), {"demo__tokenizer"}]
        client.abort("demo__tokenizer", errors.EngineFailed())
        assert isinstance(await waiting, errors.EngineFailed)
        assert client.stalled_stages("demo", 1.0, 2.0) == set()


async def test_an_engine_that_does_not_know_the_stream_gets_another_and_the_request_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """Another frontend had it loaded anew: requests failed until this one looked at its epoch."""
    async with running(server, client) as others:
        server.streams.clear()
        server.script = list(chunks("a"))
        assert await asyncio.gather(*(completion_of(client) for _ in range(3))) == [chunks("a")] * 3
        assert [type(each) for each in await asyncio.gather(*others)] == [errors.EngineFailed] * 2
    assert server.num_opened == 2


async def test_an_engine_that_never_knows_the_stream_is_asked_twice(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.refusal = DeliveriesNotOpen("no stream", "delivery_key").message()
    assert isinstance(await failure_of(client), errors.EngineFailed)
    assert len(server.requests) == 2


async def test_what_comes_after_a_finish_is_told_and_not_read(server: FakeTritonServer) -> None:
    listener, port = await listen(server)
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    client = TritonClient(f"127.0.0.1:{port}", on_late=lambda slug, request_id: told.put_nowait((slug, request_id)))
    rest = asyncio.Event()
    server.script = [*chunks("a"), text("at once"), rest, text("later")]
    asked = dataclasses.replace(REQUEST, request_id="r1")
    async with asyncio.timeout(10):
        assert await completion_of(client, asked) == chunks("a")
        assert await told.get() == ("demo", "r1")  # its reader may be there still
        rest.set()
        assert await told.get() == ("demo", "r1")  # it has left
    await client.close()
    await listener.stop(None)


async def test_what_comes_for_a_reader_that_has_left_breaks_no_rule(server: FakeTritonServer) -> None:
    listener, port = await listen(server)
    told: list[str] = []
    client = TritonClient(f"127.0.0.1:{port}", on_late=lambda slug, request_id: told.append(request_id))
    rest = asyncio.Event()
    server.script = [text("a"), rest, *chunks("b")]
    async with aclosing(client.generate("demo", REQUEST)) as generation:
        await anext(generation)
    rest.set()
    server.script = list(chunks("c"))
    assert await completion_of(client) == chunks("c")
    assert told == []
    await client.close()
    await listener.stop(None)


async def test_closing_ends_the_stream_and_who_reads_it(server: FakeTritonServer) -> None:
    listener, port = await listen(server)
    client = TritonClient(f"127.0.0.1:{port}")
    async with running(server, client) as tasks:
        stream = the_stream(server)
        await client.close()
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.TritonUnreachable] * 2
        await asyncio.wait_for(stream.ended.wait(), 10)
    await listener.stop(None)


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


async def test_what_was_begun_on_the_engine_of_an_epoch_can_be_spared(
    server: FakeTritonServer, client: TritonClient
) -> None:
    async with running(server, client) as tasks:
        assert client.abort("demo__engine", errors.EngineFailed("lost"), spared_epoch=server.epoch) == 0
        assert client.abort("demo__engine", errors.EngineFailed("lost"), spared_epoch=server.epoch + 1) == 2
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.EngineFailed] * 2


async def test_everything_can_be_ended_with_one_error(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client) as tasks:
        assert client.end_all(errors.Draining()) == 2
        assert [type(each) for each in await asyncio.gather(*tasks)] == [errors.Draining] * 2


@pytest.mark.parametrize("how", ["closed", "failed by Triton"])
async def test_nothing_of_a_call_is_left_when_it_has_ended(
    server: FakeTritonServer, client: TritonClient, how: str
) -> None:
    # grpc leaves the task that sends what we have to send where the call was over before it was cancelled.
    await client.engine_stats("demo", 10)
    before = len(asyncio.all_tasks())
    async with running(server, client):
        if how == "closed":
            client.end_all(errors.EngineFailed())
        else:
            the_stream(server).fail("[engine_failed] broken")
    await client.close()
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  # tasks of grpc's have no event
            await asyncio.sleep(0.01)
