"""What waits to be read of a completion."""

from __future__ import annotations

import asyncio

import pytest

from frontend import errors
from frontend.triton.mailbox import MAX_UNREAD, Mailbox
from model_repository.generation import GenerationChunk
from tests.fakes import chunks


def text(value: str) -> GenerationChunk:
    return GenerationChunk(text=value)


def empty() -> Mailbox:
    return Mailbox(lambda: None)


async def test_text_that_has_come_is_read_as_one_chunk() -> None:
    mailbox = empty()
    for value in ("a", "", "b"):
        mailbox.put(text(value))
    assert await mailbox.get() == text("ab")


async def test_what_says_more_than_text_is_read_by_itself() -> None:
    """Token ids belong to their text, and the last chunk has reason and usage."""
    mailbox = empty()
    (last,) = chunks("e")
    told = [text("a"), text("b"), GenerationChunk(text="c", token_ids=(3,)), text("d"), last]
    for chunk in told:
        mailbox.put(chunk)
    assert [await mailbox.get() for _ in range(4)] == [text("ab"), told[2], text("d"), last]


async def test_a_reader_is_woken_by_a_chunk_and_by_an_error() -> None:
    mailbox = empty()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(text("a"))
    assert await reader == text("a")
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.fail(errors.EngineFailed("first"))
    mailbox.fail(errors.EngineFailed("second"))
    with pytest.raises(errors.EngineFailed, match="first"):
        await reader


async def test_what_came_before_an_error_is_read_before_it() -> None:
    """A completion whose last chunk had come was told as a failure."""
    mailbox = empty()
    mailbox.put(text("a"))
    mailbox.put(*chunks("b"))
    mailbox.fail(errors.EngineFailed())
    assert [await mailbox.get(), await mailbox.get()] == [text("a"), *chunks("b")]
    with pytest.raises(errors.EngineFailed):
        await mailbox.get()


async def test_a_reader_that_is_cancelled_leaves_the_mailbox_as_it_is() -> None:
    mailbox = empty()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    mailbox.put(text("a"))
    assert await mailbox.get() == text("a")


async def test_a_reader_that_is_far_behind_is_given_up() -> None:
    told: list[str] = []
    mailbox = Mailbox(lambda: None, lambda: told.append("overflow"))
    for _ in range(2):
        for _ in range(MAX_UNREAD):
            mailbox.put(text("a"))
        assert not told
        assert len((await mailbox.get()).text) == MAX_UNREAD
    for _ in range(2 * MAX_UNREAD):
        mailbox.put(text("a"))
    assert told == ["overflow"]
    with pytest.raises(errors.ReaderTooSlow):
        await mailbox.get()


async def test_one_long_chunk_is_never_too_much() -> None:
    mailbox = empty()
    chunk = GenerationChunk(text="a", token_ids=(1,) * (MAX_UNREAD + 1))
    for _ in range(2):
        mailbox.put(chunk)
        assert await mailbox.get() == chunk
