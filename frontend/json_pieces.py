"""JSON of any size, made piece by piece: the whole of a large answer is never in memory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import orjson

_MARK = secrets.token_hex(16)  # stands for a list in the JSON around it; occurs nowhere else
_WRITTEN_MARK = orjson.dumps(_MARK)


class _LazyList:
    def __init__(self, make_items: Callable[[], Iterable[Any]]) -> None:
        self.make_items = make_items


def lazy_list[Item](make_items: Callable[[], Iterable[Item]]) -> list[Item]:
    """Return a stand-in for a list, for JSON alone. Each writing makes the items anew."""
    return cast(list[Item], _LazyList(make_items))


def json_bytes(value: Any) -> bytes:
    """Return the JSON of a value with short lists."""
    return orjson.dumps(value, default=_listed)


def _listed(found: Any) -> list[Any]:
    if not isinstance(found, _LazyList):
        raise TypeError(f"{type(found)} is not JSON")
    return [*found.make_items()]


def json_pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value: one piece between two items of lazy lists."""
    lists: list[_LazyList] = []

    def mark(found: Any) -> str:
        if not isinstance(found, _LazyList):
            raise TypeError(f"{type(found)} is not JSON")
        lists.append(found)
        return _MARK

    written = orjson.dumps(value, default=mark)
    if not lists:
        yield written
        return
    first, *others = written.split(_WRITTEN_MARK)
    yield first
    for each, text in zip(lists, others, strict=True):
        lead = b"["
        for item in each.make_items():
            yield lead
            yield from json_pieces(item)
            lead = b","
        yield (b"[]" if lead == b"[" else b"]") + text


def sliced(pieces: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """Yield pieces in slices of at least `num_bytes`; the last one is shorter, or empty."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= num_bytes:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)
