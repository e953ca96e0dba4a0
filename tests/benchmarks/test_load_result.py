from __future__ import annotations

import pytest

from tests.benchmarks.load import Load, Target
from tests.benchmarks.load_result import LoadResult, summarize
from tests.benchmarks.stream_record import StreamRecord

TARGET = Target(url="http://a", model="m")


def stream(sent_s: float, *chunk_times_s: float, error: str = "") -> StreamRecord:
    """Return a stream with a token of one character in each chunk, which ended with the last."""
    return StreamRecord(
        sent_s=sent_s,
        ended_s=chunk_times_s[-1],
        chunk_times_s=chunk_times_s,
        chunk_chars=(1,) * len(chunk_times_s),
        num_tokens=len(chunk_times_s),
        error=error,
    )


def result_of(*records: StreamRecord, **load: float) -> LoadResult:
    """Summarize streams with a window from 10 to 12 seconds."""
    return summarize(Load(window_s=2.0, **load), TARGET, records, window_start_s=10.0)  # type: ignore[arg-type]


def test_only_what_arrived_in_the_window_counts() -> None:
    result = result_of(stream(9, 9.5, 10.0, 11.0, 12.0), stream(11, 11.5, 11.6))
    assert (result.num_tokens, result.num_chunks, result.num_requests, result.num_sent) == (4, 4, 1, 2)


def test_the_time_to_the_first_token_is_counted_from_sending() -> None:
    assert result_of(stream(10.0, 10.25, 10.5)).ttft_ms.at(50) == pytest.approx(250)


def test_a_stream_that_had_ended_before_the_window_is_in_no_distribution() -> None:
    assert result_of(stream(1, 2, 3)).ttft_ms.num_values == 0


def test_the_slowest_stream_is_among_those_that_ran_all_the_time() -> None:
    busy, starved = stream(9, 9.5, 10.5, 11.0, 12.5), stream(9, 9.5, 11.9, 13.0)
    assert result_of(busy, starved, stream(11, 11.5)).fewest_tokens == 1
    assert result_of(stream(11, 11.5)).fewest_tokens == -1


def test_wrong_streams_are_counted_with_their_reason_and_measured_nowhere() -> None:
    result = result_of(stream(10, 10.5, error="bad"), stream(10, 10.5, error="bad"), stream(10, 10.5))
    assert (result.num_failed, result.errors, result.num_tokens) == (2, {"bad": 2}, 1)


def test_a_pace_gives_delays_and_no_pace_none() -> None:
    record = stream(10.0, 10.1, 10.3, 10.4)
    paced = result_of(record, itl_ms=100.0)
    assert paced.added_itl_ms.at(100) == pytest.approx(100)
    assert paced.kept_pace.at(0) == pytest.approx(2 / 3)
    assert result_of(record).added_itl_ms.num_values == 0


def test_a_result_comes_back_from_json_as_it_was() -> None:
    result = result_of(stream(10, 10.5, 10.7), stream(10, 10.6, error="bad"), itl_ms=100.0)
    assert LoadResult.from_json(result.to_json()) == result
