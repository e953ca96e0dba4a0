"""Tokens leave once their text is final."""

from __future__ import annotations

import codecs
import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model_repository.engine.release_gate import ReleaseGate

EURO = "€".encode()  # three bytes


def stream(pieces: Sequence[bytes], stops: Sequence[bytes] = (), **options: Any) -> list[str]:
    """Return the text of every release when the tokens have these bytes: one item per token, one for the end."""
    gate = ReleaseGate(pieces, stops, **options)
    texts = []
    for token_id in range(len(pieces)):
        released = gate.push(token_id)
        texts.append(_text(gate, released, pieces))
        if gate.matched_stop is not None:
            return texts
    return [*texts, _text(gate, gate.finish(), pieces)]


def _text(gate: ReleaseGate, token_ids: Sequence[int], pieces: Sequence[bytes]) -> str:
    """Return what the detokenizer makes of a release."""
    text = b"".join(pieces[token_id] for token_id in token_ids)
    return text[: len(text) - gate.num_cut_bytes].decode("utf-8", "replace")


def reference(text: bytes, stops: Sequence[bytes], *, include_stop: bool = False, num_exempt_bytes: int = 0) -> str:
    """Return what the text must be, found in the whole of it; no stop counts that ends in the exempt bytes."""
    matches = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > num_exempt_bytes
    ]
    end, start = min(matches, default=(len(text), len(text)))
    return text[: end if include_stop else start].decode("utf-8", "replace")


def naive_stream(
    pieces: Sequence[bytes], stops: Sequence[bytes], *, include_stop: bool, min_tokens: int
) -> list[tuple[list[int], int]]:
    """Return what each push, and the end, must release and cut: all of it looked at anew for every token."""
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


def test_a_whole_character_is_released_at_once() -> None:
    assert stream([b"a", EURO]) == ["a", "€", ""]


def test_a_character_split_over_two_tokens_is_released_once_whole() -> None:
    gate = ReleaseGate({1: b"\xe2\x82", 2: b"\xac"}, [])
    assert [gate.push(1), gate.push(2), gate.finish()] == [[], [1, 2], []]


def test_a_token_that_ends_inside_a_character_waits_whole() -> None:
    assert stream([b"ab\xe2", b"\x82", b"\xacc"]) == ["", "", "ab€c", ""]


def test_tokens_before_an_open_character_do_not_wait_for_it() -> None:
    gate = ReleaseGate([b"a", b"\xe2\x82"], [])
    assert [gate.push(0), gate.push(1)] == [[0], []]


def test_a_character_that_never_completes_is_released_at_the_end_as_a_replacement() -> None:
    assert stream([b"a", b"\xe2\x82"]) == ["a", "", "\ufffd"]


def test_bytes_that_can_no_longer_become_a_character_are_released_at_once() -> None:
    assert stream([b"\xff", b"\x80", b"a"]) == ["\ufffd", "\ufffd", "a", ""]


def test_an_open_character_that_another_one_breaks_off_is_released_with_it() -> None:
    assert stream([b"\xe2\x82", b"a"]) == ["", "\ufffda", ""]


def test_tokens_without_bytes_pass_and_leave_an_open_character_open() -> None:
    gate = ReleaseGate([b"", b"\xc3", b"\xa9"], [])
    assert [gate.push(token_id) for token_id in (0, 1, 0, 2)] == [[0], [], [], [1, 0, 2]]


def test_a_stop_inside_a_token_cuts_the_token() -> None:
    gate = ReleaseGate([b"one STOP two"], [b"STOP"])
    assert gate.push(0) == [0]
    assert (gate.matched_stop, gate.num_cut_bytes) == (0, len("STOP two"))


def test_a_stop_that_begins_with_a_token_drops_that_token() -> None:
    gate = ReleaseGate([b"one", b"STOP"], [b"STOP"])
    assert [gate.push(0), gate.push(1), gate.num_cut_bytes] == [[0], [], 0]


def test_a_stop_that_spans_tokens_is_never_released_in_part() -> None:
    assert stream([b"a<", b"e", b"nd>", b"never"], [b"<end>"]) == ["", "", "a"]


def test_a_stop_that_spans_a_multi_byte_character_is_found() -> None:
    assert stream([b"1 \xe2", b"\x82", b"\xac!"], ["€!".encode()]) == ["", "", "1 "]


def test_a_stop_that_ends_inside_a_token_stops_there() -> None:
    assert stream([b"a", b"b", b"cd"], [b"bc"]) == ["a", "", ""]


def test_a_stop_at_the_very_beginning_leaves_no_text() -> None:
    assert stream([b"stop"], [b"stop"]) == [""]


def test_the_beginning_of_a_stop_is_released_when_it_does_not_complete() -> None:
    assert stream([b"x", b"S", b"T", b"A"], [b"STOP"]) == ["x", "", "", "STA", ""]


def test_a_stop_that_begins_again_inside_its_own_beginning_is_found() -> None:
    assert stream([b"a", b"a", b"a", b"b"], [b"aab"]) == ["", "", "a", ""]


def test_a_stop_is_found_after_a_part_of_what_was_held_has_left() -> None:
    assert stream([b"S", b"aS", b"TOP"], [b"STOP"]) == ["", "S", "a"]


def test_the_beginning_of_a_stop_is_released_when_generation_ends() -> None:
    assert stream([b"x", b"ST"], [b"STOP"]) == ["x", "", "ST"]


def test_of_several_stops_the_one_that_is_complete_first_wins() -> None:
    assert "".join(stream([b"xabcd"], [b"abcd", b"bc"])) == "xa"


def test_of_stops_complete_at_the_same_byte_the_longest_wins() -> None:
    assert "".join(stream([b"xabc"], [b"c", b"abc", b"bc"])) == "x"


@pytest.mark.parametrize("stops", [[b"ab", b"b"], [b"b", b"ab"]])
def test_the_order_of_the_stops_does_not_matter(stops: list[bytes]) -> None:
    assert "".join(stream([b"x", b"a", b"b"], stops)) == "x"


def test_nothing_is_held_after_the_end() -> None:
    gate = ReleaseGate([b"S"], [b"STOP"])
    assert [gate.push(0), gate.finish(), gate.finish()] == [[], [0], []]


def test_the_stop_that_matched_is_known() -> None:
    gate = ReleaseGate([b"a", b"bc"], [b"x", b"bc", b"abc"])
    gate.push(0)
    assert gate.matched_stop is None
    gate.push(1)
    assert gate.matched_stop == 2


# --- the stop is part of the text ------------------------------------------------------------------------------------


def test_an_included_stop_is_where_the_text_ends() -> None:
    assert stream([b"a<", b"en", b"d>b", b"never"], [b"<end>"], include_stop=True) == ["", "", "a<end>"]


def test_what_stands_behind_an_included_stop_in_its_token_is_cut() -> None:
    gate = ReleaseGate([b"one STOP two"], [b"STOP"], include_stop=True)
    assert (gate.push(0), gate.num_cut_bytes) == ([0], len(" two"))


def test_an_included_stop_that_ends_with_its_token_cuts_nothing() -> None:
    gate = ReleaseGate([b"one", b" STOP"], [b"STOP"], include_stop=True)
    assert [gate.push(0), gate.push(1), gate.num_cut_bytes] == [[0], [1], 0]


# --- min_tokens ------------------------------------------------------------------------------------------------------


def test_a_stop_that_is_complete_before_min_tokens_is_text() -> None:
    assert stream([b"a", b"S", b"T", b"b", b"ST", b"c"], [b"ST"], min_tokens=4) == ["a", "", "ST", "b", ""]


def test_a_stop_that_only_ends_after_min_tokens_counts() -> None:
    assert stream([b"a", b"S", b"T", b"b"], [b"ST"], min_tokens=2) == ["a", "", ""]


def test_a_stop_before_min_tokens_may_be_the_beginning_of_one_after_it() -> None:
    assert stream([b"aba", b"bac"], [b"aba"], min_tokens=1) == ["", "ab"]


# --- any text, any tokenization --------------------------------------------------------------------------------------

# Few different bytes, so that stops and characters are hit, missed and cut often.
TEXTS = st.lists(st.sampled_from([b"a", b"b", b"\xc3\xa9", b"\xe2\x82\xac", b"\xe2", b"\x82", b"\xff"])).map(b"".join)
STOPS = st.lists(st.text("abé€", min_size=1, max_size=4).map(str.encode), max_size=3)
CUTS = st.sets(st.integers(0, 40))


def cut(text: bytes, cuts: set[int]) -> list[bytes]:
    """Return the text in pieces; a cut beyond its end is a token without bytes."""
    return [text[start:end] for start, end in itertools.pairwise([0, *sorted(cuts), max(len(text), *cuts, 0)])]


@settings(max_examples=400)
@given(TEXTS, STOPS, CUTS, st.booleans(), st.integers(0, 6))
@example(b"aab", [b"ab"], {1, 2}, False, 0)
def test_any_tokenization_gives_the_text_of_the_whole(
    text: bytes, stops: list[bytes], cuts: set[int], include_stop: bool, min_tokens: int
) -> None:
    pieces = cut(text, cuts)
    releases = stream(pieces, stops, include_stop=include_stop, min_tokens=min_tokens)
    num_exempt_bytes = len(b"".join(pieces[:min_tokens]))
    assert "".join(releases) == reference(
        b"".join(pieces), stops, include_stop=include_stop, num_exempt_bytes=num_exempt_bytes
    )


@given(TEXTS, STOPS, CUTS, st.integers(0, 6))
def test_a_held_token_is_one_that_could_still_change(
    text: bytes, stops: list[bytes], cuts: set[int], min_tokens: int
) -> None:
    """Nothing waits longer than it must: what is held is an open character or may begin a stop, in its token."""
    pieces, held = cut(text, cuts), b""
    gate = ReleaseGate(pieces, stops, min_tokens=min_tokens)
    for token_id, piece in enumerate(pieces):
        held += piece
        for released in gate.push(token_id):
            held = held[len(pieces[released]) :]
        if gate.matched_stop is not None:
            return
        may_be_stop = any(held.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))
        is_open = len(held.decode("utf-8", "replace")) != len(held.decode("utf-8", "ignore"))
        assert not held or may_be_stop or is_open


@settings(max_examples=1000)
@given(
    st.lists(
        st.text("abé", max_size=4).map(str.encode) | st.sampled_from([b"", b"\xc3", b"\xe2\x82", b"\xff"]), max_size=20
    ),
    st.lists(st.text("ab", min_size=1, max_size=8) | st.text("aé", min_size=1, max_size=3), max_size=4),
    st.booleans(),
    st.integers(0, 6),
)
@example([b"a"] * 6 + [b"b"], ["aab", "aaaaab"], False, 0)
@example([b"\xe2", b"", b"ab"], ["ab"], False, 0)
def test_every_push_releases_what_a_look_at_the_whole_text_does(
    pieces: list[bytes], stops: list[str], include_stop: bool, min_tokens: int
) -> None:
    byte_stops = [stop.encode() for stop in stops]
    options: dict[str, Any] = {"include_stop": include_stop, "min_tokens": min_tokens}
    gate, results = ReleaseGate(pieces, byte_stops, **options), []
    for token_id in range(len(pieces)):
        results.append((gate.push(token_id), gate.num_cut_bytes))
        if gate.matched_stop is not None:
            break
    else:
        results.append((gate.finish(), 0))
    assert results == naive_stream(pieces, byte_stops, **options)


# --- long stops ------------------------------------------------------------------------------------------------------

LONG = 1_000_000


class CountingStop(bytes):
    """A stop sequence that counts how often one of its bytes is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        """Return a byte."""
        self.num_reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "stop",
    [b"a" * LONG, b"a" * 5_000 + b"b" * LONG, (b"a" * 99 + b"b") * (LONG // 100), b"ab" * (LONG // 2)],
)
@pytest.mark.parametrize("is_broken_off", [False, True])
def test_a_long_stop_costs_a_constant_for_each_byte(stop: bytes, is_broken_off: bool) -> None:
    """A stop of one letter, a megabyte long, kept the engine's thread busy for seconds with every token."""
    counting = CountingStop(stop)
    gate = ReleaseGate([b"aaaa", b"c"], [counting])
    began_s = time.process_time()
    num_released = sum(len(gate.push(int(is_broken_off and index % 2_000 == 1_999))) for index in range(20_000))
    num_released += len(gate.finish())
    assert num_released == 20_000
    assert counting.num_reads < 8 * 4 * 20_000
    assert time.process_time() - began_s < 5.0  # a tenth of a second; what is quadratic takes minutes
