"""The chunks of a completion that wait for their reader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from frontend import errors
from frontend.triton import chunk_queue
from frontend.triton.chunk_queue import MAX_UNREAD, ChunkQueue, UnreadBytes
from model_repository.contract.output import GenerationChunk
from tests.fakes import chunks
from tests.frontend.triton.generating import said


def text(value: str) -> GenerationChunk:
    return GenerationChunk(text=value)


def empty() -> ChunkQueue:
    return queue_with([])


def queue_with(events: list[object]) -> ChunkQueue:
    """Return a queue that records what it calls."""
    return ChunkQueue("", close=events.append, on_end=events.append)


async def test_a_chunk_that_says_more_than_text_is_read_by_itself() -> None:
    """Token ids belong to their text, and the last chunk has reason and usage."""
    queue = empty()
    (last,) = chunks("e")
    sent = [text("a"), text("b"), GenerationChunk(text="c", token_ids=(3,)), text("d"), last]
    for chunk in sent:
        queue.put(chunk)
    assert [await queue.get() for _ in range(4)] == [
        GenerationChunk(text="ab", num_tokens=2),
        sent[2],
        text("d"),
        last,
    ]


async def test_a_reader_is_woken_by_a_chunk_and_by_an_error() -> None:
    queue = empty()
    reader = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(text("a"))
    assert await reader == text("a")
    reader = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.fail(errors.EngineFailed("first"))
    queue.fail(errors.EngineFailed("second"))
    with pytest.raises(errors.EngineFailed, match="first"):
        await reader


async def test_chunks_before_an_error_are_read_before_it() -> None:
    """A completion whose last chunk had come ended as a failure."""
    queue = empty()
    queue.put(text("a"))
    queue.put(*chunks("b"))
    queue.fail(errors.EngineFailed())
    assert [await queue.get(), await queue.get()] == [text("a"), *chunks("b")]
    with pytest.raises(errors.EngineFailed):
        await queue.get()


async def test_a_reader_that_is_cancelled_leaves_the_queue_as_it_is() -> None:
    queue = empty()
    reader = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    queue.put(text("a"))
    assert await queue.get() == text("a")


async def test_a_reader_that_is_far_behind_is_given_up() -> None:
    events: list[object] = []
    queue = queue_with(events)
    for _ in range(2):
        for _ in range(MAX_UNREAD):
            queue.put(text("a"))
        assert not events
        assert len(said(await queue.get())) == MAX_UNREAD
    for _ in range(2 * MAX_UNREAD):
        queue.put(text("a"))
    assert events == [True, None]  # it is cancelled at once, although its reader does not read
    with pytest.raises(errors.ReaderTooSlow):
        await queue.get()


async def test_one_long_chunk_is_never_too_much() -> None:
    queue = empty()
    chunk = GenerationChunk(text="a", token_ids=(1,) * (MAX_UNREAD + 1))
    for _ in range(2):
        queue.put(chunk)
        assert await queue.get() == chunk


@pytest.mark.parametrize(("is_stream", "error"), [(True, errors.ReaderTooSlow), (False, errors.QueueFull)])
async def test_all_readers_of_a_sender_have_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, is_stream: bool, error: type[errors.APIError]
) -> None:
    """128 completions with 16,384 unread tokens each took half a gigabyte, and a sender may have many requests."""
    monkeypatch.setattr(chunk_queue, "MAX_UNREAD_BYTES", 2**20)
    unread = UnreadBytes()

    def queue_of(sender: str) -> ChunkQueue:
        return ChunkQueue(
            "", is_stream=is_stream, sender=sender, unread=unread, close=lambda _: None, on_end=lambda _: None
        )

    slow, other = [queue_of("slow") for _ in range(17)], queue_of("other")
    part = GenerationChunk(text="a", logprobs=(b"a" * 63_000,))
    for queue in slow:
        queue.put(part)
    assert unread.is_full("slow") and not unread.is_full("other")
    other.put(part)
    fast = queue_of("slow")
    fast.put(*chunks("b"))
    slow[0].put(part)
    with pytest.raises(error):
        await slow[0].get()
    assert await fast.get() == chunks("b")[0]
    for queue in slow:
        queue.drop()
    assert not unread.is_full("slow")
    assert unread._by_sender.keys() == {"other"}


async def test_memory_is_free_once_it_is_read() -> None:
    unread = UnreadBytes()
    queue = ChunkQueue("", sender="a", unread=unread, close=lambda _: None, on_end=lambda _: None)
    for chunk in (text("a"), text("b"), GenerationChunk(text="c", token_ids=(3,)), text("d"), *chunks("e")):
        queue.put(chunk)
    for _ in range(4):
        assert unread._by_sender
        await queue.get()
    assert not unread._by_sender


async def test_a_completion_without_a_stream_is_one_chunk() -> None:
    """The engine sends many log probabilities in parts: one message with all of them held up each stream."""
    queue = ChunkQueue("", is_stream=False, close=lambda _: None, on_end=lambda _: None)
    reader = asyncio.create_task(queue.get())
    (last,) = chunks("c")
    first = GenerationChunk(text="pa", token_ids=(1, 2), logprobs=(b"1",), num_prompt_tokens=1, prompt_token_ids=(1,))
    for part in (first, GenerationChunk(text="b", token_ids=(3,), logprobs=(b"2",), spans=(1, 0)), last):
        assert not reader.done()
        queue.put(part)
        await asyncio.sleep(0)
    assert await reader == replace(
        last,
        text="pabc",
        token_ids=(1, 2, 3),
        logprobs=(b"1", b"2"),
        num_prompt_tokens=1,
        prompt_token_ids=(1,),
        spans=(0, 2, 1, 1),
    )


async def test_the_end_of_the_work_is_told_before_its_reader_reads() -> None:
    events: list[object] = []
    queue = queue_with(events)
    queue.put(text("a"))
    assert not events
    [last] = chunks("b")
    queue.put(last)
    assert (events, last.usage is not None) == ([last.usage], True)
