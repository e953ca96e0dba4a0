"""Marks of a prompt's beginnings: by them a frontend finds the replica that keeps the KV tokens of a prompt.

A mark is a hash of the prompt's first bytes, up to one of ENDS. The frontend makes the marks from what it sends, before
any stage has made tokens of it. The engine keeps them with the KV tokens, and tells the frontends which ones it keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from hashlib import blake2b

MARK_BYTES = 8
MAX_MARKS = 200  # of a prompt; the last one stands for 33 MB
_MIN_STEP, _GROWTH = 256, 0.05  # bytes between two ends, and their share of what is before them
MAX_KEPT_BYTES = 2**17  # of all marks of an engine


def _ends() -> Iterator[int]:
    end = 0
    for _ in range(MAX_MARKS):
        end += max(_MIN_STEP, int(_GROWTH * end))
        yield end


ENDS = tuple(_ends())  # bytes of the prompt for which each mark stands


def marks_of(key: bytes, text: bytes) -> bytes:
    """Return the marks of a prompt, one behind the other.

    Args:
        key: a secret of at most 64 bytes. Marks cannot be made without it.
        text: begins with whatever the KV tokens depend on besides the prompt.
    """
    hashed, marks, view, start = blake2b(key=key, digest_size=MARK_BYTES), [], memoryview(text), 0
    for end in ENDS[: bisect_right(ENDS, len(text))]:
        hashed.update(view[start:end])
        marks.append(hashed.copy().digest())
        start = end
    return b"".join(marks)


def split(marks: bytes) -> list[bytes]:
    """Return the single marks."""
    return [marks[start : start + MARK_BYTES] for start in range(0, len(marks), MARK_BYTES)]


def first_marks(marks: bytes, share: float) -> bytes:
    """Return the first marks of a prompt. Only this share of its bytes is kept."""
    num_marks = len(marks) // MARK_BYTES
    if share >= 1 or not num_marks:
        return marks
    return marks[: MARK_BYTES * bisect_right(ENDS, share * ENDS[num_marks - 1], hi=num_marks)]


def united(kept: Iterable[bytes]) -> bytes:
    """Return each mark once. If they are too many for an answer, the last ones are left out."""
    found: dict[bytes, None] = {}
    for marks in kept:
        found |= dict.fromkeys(split(marks))
        if len(found) * MARK_BYTES >= MAX_KEPT_BYTES:
            break
    return b"".join(found)[:MAX_KEPT_BYTES]


def num_known(marks: Sequence[bytes], known: Container[bytes]) -> int:
    """Return how many of a prompt's first marks are known. If a mark is known, so are all marks before it."""
    return bisect_right(range(len(marks)), False, key=lambda index: marks[index] not in known)
