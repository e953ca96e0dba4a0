"""The process that reads a document: hostile ones end with an error, within its limits."""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from frontend.documents import process
from frontend.documents.document import Bounds, Picture, Unreadable
from frontend.documents.process import read_in_process
from tests.documents import hostile_documents, odd_documents, pdf_with_image
from tests.waiting import DEADLINE_S, wait_until

BOUNDS = Bounds(max_pages=300, max_chars=1 << 24, reads_pictures=True, max_pictures=1)
# Files that take more memory than there is; some may take too long instead.
ENDED = {
    *("a page of a gibibyte of operators", "1,000,000 lines on a page", "200,000 forms inside each other"),
    *("60,000 rows of 16,384 cells", "a text that 100,000 cells share", "1,000,000 objects without a page"),
    "HTML of 1,000,000 attributes",
}
ENDLESS = b"<!doctype html>" + b"<div>" * 1_000_000


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the lowest priority of a machine that runs other tests."""
    monkeypatch.setattr(process, "_TIMEOUT_S", DEADLINE_S)


async def test_the_parts_come_back() -> None:
    first, mark, text, picture, last = await read_in_process(pdf_with_image("cap"), "a", BOUNDS)
    assert (first, mark, text, last) == ("[File a: PDF, 1 page.]", "[Page 1]", "cap", "[End of file a]")
    assert isinstance(picture, Picture)


async def test_hostile_documents_are_refused_within_the_limits_of_the_process() -> None:
    refused = {}
    for name, file in hostile_documents().items():
        with pytest.raises(Unreadable) as error:
            await read_in_process(file, "a", BOUNDS)
        refused[name] = str(error.value)
    assert len(refused) >= 30
    assert (
        refused["HTML that nests 1,000,000 deep"] == "reading takes more than 4 s of processor time, which is the limit"
    )
    assert "more than 256 MiB of memory" in refused["a text that 100,000 cells share"]
    assert "when they are unpacked" in refused["a part of 200 MiB"]
    ended = {name for name, rule in refused.items() if "or breaks the reader" in rule}
    assert ended <= ENDED, "each other one has a rule of its own"


async def test_odd_documents_are_read_or_refused() -> None:
    for file in odd_documents().values():
        try:
            assert await read_in_process(file, "a", BOUNDS)
        except Unreadable as exc:
            assert "breaks the reader" not in str(exc)


async def test_a_caller_that_gives_up_ends_the_process() -> None:
    reading = asyncio.create_task(read_in_process(ENDLESS, "a", BOUNDS))
    await asyncio.to_thread(wait_until, _is_reading, "a process reads")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not _is_reading()


async def test_a_machine_that_is_too_busy_is_no_fault_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_TIMEOUT_S", 0.0)
    with pytest.raises(TimeoutError):
        await read_in_process(b"x", "a", BOUNDS)


def _is_reading() -> bool:
    """Whether this process has a child that reads a document."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends
            if "frontend.documents" in child.cmdline():
                return True
    return False
