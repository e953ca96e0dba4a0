"""Tokens pass once their text is final."""

from __future__ import annotations

import codecs
import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model_repository.engine.stop_buffer import StopBuffer


def naive_stream(
    pieces: Sequence[bytes], stops: Sequence[bytes], *, include_stop: bool, min_tokens: int
) -> list[tuple[list[int], int]]:
    """Return the tokens and cut bytes of each push, and of the end, by a search in the whole text for every token."""
    results: list[tuple[list[int], int]] = []
    num_released, text = 0, b""
    ends = [0, *itertools.accumulate(len(piece) for piece in pieces)]
    for num_tokens, piece in enumerate(pieces, 1):
        num_searched, text = len(text), text + piece
        matches = [
            (end, end - len(stop))
            for stop in stops
            for end in range(num_searched + 1, len(text) + 1)
            if text[:end].endswith(stop) and num_tokens > min_tokens
        ]
        if matches:
            limit = min(matches)[not include_stop]
            final = [item for item in range(num_released, num_tokens) if ends[item] < limit]
            return [*results, (final, max(0, ends[final[-1] + 1] - limit) if final else 0)]
        held = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        num_final = num_released
        for item in range(num_released, num_tokens):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            decoder.decode(text[: ends[item + 1]])
            if not decoder.getstate()[0] and ends[item + 1] <= len(text) - held:
                num_final = item + 1
        results.append((list(range(num_released, num_final)), 0))
        num_released = num_final
    return [*results, (list(range(num_released, len(pieces))), 0)]


def test_the_buffer_is_empty_after_the_end() -> None:
    stop_buffer = StopBuffer([b"S"], [b"STOP"])
    assert [stop_buffer.push(0), stop_buffer.finish(), stop_buffer.finish()] == [[], [0], []]


def test_the_stop_that_matched_is_known() -> None:
    stop_buffer = StopBuffer([b"a", b"bc"], [b"x", b"bc", b"abc"])
    stop_buffer.push(0)
    assert stop_buffer.matched_stop is None
    assert stop_buffer.push(1) == []  # unless the stop is part of the text
    assert stop_buffer.matched_stop == 2
    at_once = StopBuffer([b"x"], [b"x"])
    assert (at_once.push(0), at_once.matched_stop) == ([], 0)


# --- any text, any tokenization --------------------------------------------------------------------------------------


@settings(max_examples=1000)
@given(
    st.lists(
        st.text("abé", max_size=4).map(str.encode)
        | st.sampled_from([b"", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xff"]),
        max_size=20,
    ),
    st.lists(st.text("ab", min_size=1, max_size=8) | st.text("aé", min_size=1, max_size=3), max_size=4),
    st.booleans(),
    st.integers(0, 6),
)
@example([b"a", b"a", b"b"], ["ab"], False, 0)
@example([b"a"] * 6 + [b"b"], ["aab", "aaaaab"], False, 0)
@example([b"\xe2", b"", b"ab"], ["ab"], False, 0)
def test_every_push_returns_the_tokens_that_a_search_in_the_whole_text_returns(
    pieces: list[bytes], stops: list[str], include_stop: bool, min_tokens: int
) -> None:
    byte_stops = [stop.encode() for stop in stops]
    options: dict[str, Any] = {"include_stop": include_stop, "min_tokens": min_tokens}
    stop_buffer, results = StopBuffer(pieces, byte_stops, **options), []
    for token_id in range(len(pieces)):
        results.append((stop_buffer.push(token_id), stop_buffer.num_cut_bytes))
        if stop_buffer.matched_stop is not None:
            break
    else:
        results.append((stop_buffer.finish(), 0))
    assert results == naive_stream(pieces, byte_stops, **options)


# --- long stops ------------------------------------------------------------------------------------------------------

LONG = 1_000_000


class CountingStop(bytes):
    """A stop sequence that counts how often one of its bytes is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("stop", "is_broken_off"),
    [(b"a" * LONG, False), (b"a" * 5_000 + b"b" * LONG, True), ((b"a" * 99 + b"b") * (LONG // 100), True)],
)
def test_a_long_stop_costs_a_constant_for_each_byte(stop: bytes, is_broken_off: bool) -> None:
    """A stop of one repeated letter, a megabyte long, kept the engine's thread busy for seconds with every token."""
    counting = CountingStop(stop)
    stop_buffer = StopBuffer([b"aaaa", b"c"], [counting])
    began_s = time.process_time()
    num_released = sum(len(stop_buffer.push(int(is_broken_off and index % 2_000 == 1_999))) for index in range(20_000))
    num_released += len(stop_buffer.finish())
    assert num_released == 20_000
    assert counting.num_reads < 8 * 4 * 20_000
    assert time.process_time() - began_s < 5.0  # a tenth of a second; quadratic time would be minutes
