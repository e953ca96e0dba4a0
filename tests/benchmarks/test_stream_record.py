from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.http_stream import Exchange
from tests.benchmarks.sse_answers import chat_events, event
from tests.benchmarks.stream_record import StreamRecord, read_stream, timed_events

EVENTS = chat_events(["a", "bc", "ü\u2028"])
BODY = b"".join(EVENTS)


def pieces_of(body: bytes, cuts: list[int]) -> list[tuple[float, bytes]]:
    """Cut a body; piece n arrives at n seconds."""
    edges = [0, *sorted(cuts), len(body)]
    return [(float(n), body[a:b]) for n, (a, b) in enumerate(pairwise(edges))]


def record_of(events: list[bytes], *, num_tokens: int = 3, may_stop_early: bool = False) -> StreamRecord:
    """Read events that all came at once."""
    return read_stream(Exchange(0.0, 200, [(1.0, b"".join(events))], 1.0), num_tokens, may_stop_early=may_stop_early)


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_events_are_the_same_however_the_body_was_cut(cuts: list[int]) -> None:
    assert [data for _, data in timed_events(pieces_of(BODY, cuts))] == [data for _, data in timed_events([(0, BODY)])]


@given(st.integers(0, len(BODY)))
def test_an_event_has_the_time_of_the_piece_with_its_end(cut: int) -> None:
    ends, end = [], 0
    for each in EVENTS:
        end += len(each)
        ends.append(end)
    times = [time for time, _ in timed_events(pieces_of(BODY, [cut]))]
    assert times == [0.0 if end <= cut else 1.0 for end in ends]


def test_lines_may_end_with_carriage_returns_and_comments_are_no_events() -> None:
    body = b": ping\r\n\r\nevent: x\r\ndata: 1\r\ndata: 2\r\n\r\n"
    assert list(timed_events([(0.5, body)])) == [(0.5, b"1\n2")]


def test_a_right_stream_has_its_chunks_and_no_error() -> None:
    record = record_of(EVENTS)
    assert (record.chunk_chars, record.num_tokens, record.error) == ((1, 2, 2), 3, "")


def test_completions_have_their_text_read_too() -> None:
    events = [event({"choices": [{"text": "ab", "finish_reason": "length"}], "usage": {"completion_tokens": 3}})]
    assert record_of([*events, event("[DONE]")]).chunk_chars == (2,)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (EVENTS[:-1], "without [DONE]"),
        (chat_events(["a"], num_tokens=2), "after 2 tokens by usage, 3 were asked for"),
        (chat_events(["a"], num_tokens=3, finish_reason="stop"), "finish_reason stop"),
        ([event({"error": {"message": "no room"}}), event("[DONE]")], "no room"),
        ([event("{"), event("[DONE]")], "not JSON"),
        ([], "without [DONE]"),
    ],
)
def test_a_wrong_stream_says_what_is_wrong(events: list[bytes], says: str) -> None:
    assert says in record_of(events).error


def test_a_model_that_may_stop_early_may_do_so() -> None:
    assert record_of(chat_events(["a"], finish_reason="stop"), may_stop_early=True).error == ""


def test_another_status_is_an_error_with_what_was_said() -> None:
    record = read_stream(Exchange(0.0, 404, [(1.0, b"no such model")], 1.0), 3, may_stop_early=False)
    assert record.error == "status 404: no such model"
