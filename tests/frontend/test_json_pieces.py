"""JSON that is made piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from frontend.json_pieces import json_bytes, json_pieces, lazy_list, sliced

EAGER: dict[str, Any] = {
    "a": [],
    "b": [{"c": [1, 2], "d": "ä"}, {"c": [], "d": None}],
    "e": {"f": [0.5], "g": []},
}


def item(values: list[int], text: str | None) -> dict[str, Any]:
    return {"c": lazy_list(lambda: values), "d": text}


def lazy() -> dict[str, Any]:
    return {
        "a": lazy_list(lambda: ()),
        "b": lazy_list(lambda: (item(each["c"], each["d"]) for each in EAGER["b"])),
        "e": {"f": lazy_list(lambda: [0.5]), "g": lazy_list(list)},
    }


def test_lazy_lists_are_written_as_lists() -> None:
    assert b"".join(json_pieces(lazy())) == json_bytes(lazy()) == orjson.dumps(EAGER)


def test_items_are_made_when_their_slice_is_reached() -> None:
    """The whole JSON of one answer took 2.7 GB, and the event loop stood still for 19 s."""
    made: list[int] = []

    def items() -> Iterator[str]:
        for number in range(100):
            made.append(number)
            yield "a" * 98

    slices = sliced(json_pieces({"a": lazy_list(items)}), 1000)
    assert [(len(each) <= 1101, len(made)) for each in slices] == [(True, num) for num in (*range(10, 101, 10), 100)]


def test_other_objects_are_refused() -> None:
    for write in (json_bytes, lambda value: [*json_pieces(value)]):
        with pytest.raises(TypeError, match="not JSON"):
            write({"a": object()})
