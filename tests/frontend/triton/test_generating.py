"""A completion whose engine dies: behind which tokens it goes on, where, and when it does not."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from frontend.errors import (
    APIError,
    BreaksEngine,
    Draining,
    EngineFailed,
    ModelUnloaded,
    NotFinite,
    NotTaken,
    StageUnhealthy,
    UnsupportedValue,
)
from frontend.triton import generating
from frontend.triton.chunk_queue import MAX_UNREAD_BYTES, Announced, Resumed
from frontend.triton.generating import Generating
from model_repository.capabilities import Capability
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from tests.fakes import DEMO, FakeTriton, Script, chunks, served_model
from tests.frontend.triton.generating import said
from tests.frontend.triton.test_pool import REQUEST, Pool, pool_of

WITHIN_S = 20.0


def piece(text: str, *token_ids: int) -> GenerationChunk:
    return GenerationChunk(text=text, num_tokens=len(token_ids), packed_token_ids=array("i", token_ids).tobytes())


def first_then_rest(first: Script) -> FakeTriton:
    """Return a Triton that plays a script for new completions, and says `rest` in those that go on."""
    return FakeTriton(lambda request: first if request.params.resume_token_ids is None else chunks("rest"))


async def read(pool: Pool, request: GenerationRequest = REQUEST) -> tuple[str, int]:
    """Return a completion's text, and how often it went on; engines that have died are back at once."""
    text, num_resumed = "", 0
    async with aclosing(Generating(pool.pool, DEMO.id, request)) as stream:
        async for _, chunk in stream:
            text += said(chunk)
            if isinstance(chunk, Resumed):
                num_resumed += 1
                await polled(pool)
    return text, num_resumed


async def polled(pool: Pool) -> None:
    pool.clock.now += 1.0
    await pool.run_trials()


async def test_it_goes_on_behind_its_tokens() -> None:
    triton = first_then_rest([piece("a", 5), piece("bc", 6, 7), EngineFailed()])
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    assert await read(pool) == ("abcrest", 1)
    first, second = triton.requests
    assert second == replace(
        first,
        params=replace(first.params, resume_token_ids=(5, 6, 7), cancel_key=second.params.cancel_key),
    )
    assert second.params.cancel_key != first.params.cancel_key
    assert pool.replicas[0].num_in_flight.total() == triton.num_open == 0


async def test_a_second_death_adds_to_the_tokens() -> None:
    rests: list[Script] = [[piece("b", 6), EngineFailed()], chunks("c")]
    triton = FakeTriton(lambda request: [piece("a", 5), EngineFailed()] if request is REQUEST else rests.pop(0))
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    assert await read(pool) == ("abc", 2)
    assert [each.params.resume_token_ids for each in triton.requests] == [None, (5,), (5, 6)]


async def test_it_goes_on_at_another_replica_if_there_is_one() -> None:
    tritons = [first_then_rest([piece("a", 5), StageUnhealthy(f"{DEMO.ensemble}__engine")]) for _ in range(2)]
    pool = await pool_of(*tritons, resume_within_s=WITHIN_S)
    text, resumed = "", False
    async with aclosing(Generating(pool.pool, DEMO.id, REQUEST)) as stream:
        async for _, chunk in stream:  # nothing mends the first engine
            text += said(chunk)
            resumed = resumed or isinstance(chunk, Resumed)
    assert (text, resumed) == ("arest", True)
    assert [len(triton.requests) for triton in tritons] == [1, 1]


async def test_one_without_tokens_begins_again() -> None:
    scripts: list[Script] = [[EngineFailed()], [Announced(text="", ignored_keywords=()), EngineFailed()], chunks("x")]
    triton = FakeTriton(lambda request: scripts.pop(0))
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    assert await read(pool) == ("x", 2)
    assert {each.params.resume_token_ids for each in triton.requests} == {None}


async def test_an_echo_without_tokens_is_not_repeated() -> None:
    triton = first_then_rest([GenerationChunk(text="echo", num_tokens=0), EngineFailed()])
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    assert await read(pool) == ("echorest", 1)
    assert triton.requests[1].params.resume_token_ids == ()


@pytest.mark.parametrize("error", [NotFinite(), ModelUnloaded("It was unloaded.")])
async def test_an_error_of_its_own_ends_it(error: APIError) -> None:
    pool = await pool_of(first_then_rest([piece("a", 5), error]), resume_within_s=WITHIN_S)
    with pytest.raises(type(error)):
        await read(pool)


async def test_a_triton_that_is_away_is_waited_for() -> None:
    scripts: list[Script] = [[NotTaken()], [NotTaken()], [piece("a", 5), EngineFailed()], [NotTaken()], chunks("rest")]
    triton = FakeTriton(lambda request: scripts.pop(0) if request.params.max_tokens == 5 else chunks("a trial's"))
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    assert await read(pool) == ("arest", 3)
    assert [each.params.resume_token_ids for each in triton.requests if each.params.max_tokens == 5] == [
        None,
        None,
        None,
        (5,),
        (5,),
    ]


async def test_the_end_of_the_server_ends_its_wait() -> None:
    pool = await pool_of(first_then_rest([piece("a", 5), EngineFailed()]), resume_within_s=WITHIN_S)
    async with aclosing(Generating(pool.pool, DEMO.id, REQUEST)) as stream:
        assert [said((await anext(stream))[1]) for _ in range(2)] == ["a", ""]
        waiting = asyncio.create_task(anext(stream))
        await asyncio.wait([waiting], timeout=0.1)
        pool.pool.end_all(Draining())
        with pytest.raises(Draining):
            await waiting


async def test_a_replica_that_unloads_the_model_hands_it_over() -> None:
    tritons = [first_then_rest([piece("a", 5), ModelUnloaded("It was unloaded.")]) for _ in range(2)]
    pool = await pool_of(*tritons, resume_within_s=WITHIN_S)
    assert await read(pool) == ("arest", 1)


@pytest.mark.parametrize("chunk", [GenerationChunk(text="a"), GenerationChunk(text="ab", num_tokens=2)])
async def test_tokens_of_an_older_triton_are_not_known(chunk: GenerationChunk) -> None:
    pool = await pool_of(first_then_rest([chunk, EngineFailed()]), resume_within_s=WITHIN_S)
    with pytest.raises(EngineFailed):
        await read(pool)


async def test_a_replica_that_would_begin_it_anew_does_not_get_it() -> None:
    model = served_model(capabilities=frozenset(Capability) - {Capability.RESUME})
    triton = FakeTriton([piece("a", 5), EngineFailed()], models=[model])
    pool = await pool_of(triton, resume_within_s=0.2)
    with pytest.raises(EngineFailed):
        await read(pool)
    assert len(triton.requests) == 1


async def test_an_engine_that_cannot_go_on_behind_the_tokens_ends_it_as_the_death_would() -> None:
    scripts: list[Script] = [[piece("a", 5), EngineFailed()], [UnsupportedValue("resume_token_ids: no")]]
    pool = await pool_of(FakeTriton(lambda request: scripts.pop(0)), resume_within_s=WITHIN_S)
    with pytest.raises(EngineFailed):
        await read(pool)


async def test_tokens_beyond_the_memory_of_a_sender_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "_MIN_KEPT_BYTES", 4)
    pool = await pool_of(first_then_rest([piece("a", 5), EngineFailed()]), resume_within_s=WITHIN_S)
    pool.pool.kept.add("", MAX_UNREAD_BYTES)
    with pytest.raises(EngineFailed):
        await read(pool)
    assert pool.pool.kept._by_sender == {"": MAX_UNREAD_BYTES}


async def test_it_fails_if_no_engine_comes_in_time() -> None:
    pool = await pool_of(first_then_rest([piece("a", 5), EngineFailed()]), resume_within_s=0.2)
    with pytest.raises(EngineFailed):
        async with aclosing(Generating(pool.pool, DEMO.id, REQUEST)) as stream:
            async for _ in stream:
                pass


async def test_the_one_that_ends_each_engine_fails_by_name() -> None:
    triton = FakeTriton([piece("a", 5), EngineFailed()])
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    with pytest.raises(BreaksEngine):
        await read(pool)
    assert len(triton.requests) == 3


async def test_it_goes_on_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "MAX_RESUMPTIONS", 2)
    many = range(100)  # so many tokens that it counts as harmless
    triton = FakeTriton([piece("a", *many), EngineFailed()])
    pool = await pool_of(triton, resume_within_s=WITHIN_S)
    with pytest.raises(EngineFailed):
        await read(pool)
    assert len(triton.requests) == 3
