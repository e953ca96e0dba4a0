"""Several generations as one: order, back-pressure, and nothing left running."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from frontend.errors import EngineFailed
from frontend.fan_out import _QUEUED_PER_STREAM, Stream, merged
from frontend.request_context import Chunks
from model_repository.contract.output import GenerationChunk
from tests.frontend.triton.generating import said

ENDLESS = 1_000_000


class Source:
    """A stream that plays a script, or counts without end. It notes its chunks and its end."""

    def __init__(self, *script: str | Exception | asyncio.Event) -> None:
        self.script = script
        self.num_yielded = 0
        self.is_closed = False

    async def stream(self, index: int) -> Chunks:
        try:
            for item in self.script or map(str, range(ENDLESS)):
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    self.num_yielded += 1
                    yield index, GenerationChunk(text=item)
        finally:
            self.is_closed = True


def merge(*sources: Source) -> Stream:
    return merged((aclosing(source.stream(index)) for index, source in enumerate(sources)), len(sources))


async def read(sources: Sequence[Source]) -> list[tuple[int, str]]:
    async with merge(*sources) as chunks:
        return [(index, said(chunk)) async for index, chunk in chunks]


async def settle() -> None:
    """Let the event loop run until every task waits."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
async def _nothing_is_left_running() -> AsyncGenerator[None, None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("num_streams", [1, 2, 5])
async def test_each_streams_chunks_come_in_its_order(num_streams: int) -> None:
    sources = [Source(*(f"{index}{letter}" for letter in "abcdefgh")) for index in range(num_streams)]
    chunks = await read(sources)
    assert len(chunks) == 8 * num_streams
    for index in range(num_streams):
        assert [text for number, text in chunks if number == index] == [f"{index}{letter}" for letter in "abcdefgh"]
    assert all(source.is_closed for source in sources)


async def test_a_stream_does_not_wait_for_a_slower_one() -> None:
    gate = asyncio.Event()
    sources = [Source(gate, "slow"), Source("fast", "faster")]
    async with merge(*sources) as chunks:
        assert [said((await anext(chunks))[1]) for _ in range(2)] == ["fast", "faster"]
        gate.set()
        assert [said(chunk) async for _, chunk in chunks] == ["slow"]


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_a_slow_reader_makes_the_streams_wait(num_streams: int) -> None:
    sources = [Source() for _ in range(num_streams)]
    async with merge(*sources) as chunks:
        for num_read in range(1, 6):
            await anext(chunks)
            await settle()
            # Chunks that were read, chunks in the queue, and one that waits for the queue.
            assert sum(source.num_yielded for source in sources) <= num_read + num_streams * (_QUEUED_PER_STREAM + 1)


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_the_first_error_is_raised_after_earlier_chunks_and_closes_all(num_streams: int) -> None:
    sources = [Source("a", EngineFailed("broken")), *(Source(asyncio.Event()) for _ in range(num_streams - 1))]
    seen = []
    with pytest.raises(EngineFailed, match="broken"):
        async with merge(*sources) as chunks:
            async for item in chunks:
                seen.append(item)
    assert seen == [(0, GenerationChunk(text="a"))]
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_a_reader_that_is_cancelled_closes_every_stream(num_streams: int) -> None:
    sources = [Source("a", asyncio.Event()) for _ in range(num_streams)]
    reader = asyncio.create_task(read(sources))
    await settle()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert all(source.is_closed for source in sources)


async def test_streams_that_are_left_need_no_garbage_collector() -> None:
    """A cancelled task and its traceback referred to each other; collections of them stopped the event loop."""
    sources = [Source(asyncio.Event()) for _ in range(100)]
    gc.collect()
    gc.disable()
    try:
        reader = asyncio.create_task(read(sources))
        await settle()
        reader.cancel()
        await asyncio.wait([reader])
        del reader
        assert gc.collect() < len(sources)
    finally:
        gc.enable()
