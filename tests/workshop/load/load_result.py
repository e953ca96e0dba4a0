"""The load generator's result: counts and distributions, as JSON between its process and ours."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.workshop.load.load import Load, Target
from tests.workshop.load.measures import (
    Floats,
    Quantiles,
    added_inter_token_s,
    kept_pace,
    lateness_s,
    token_arrivals,
)
from tests.workshop.load.stream_record import StreamRecord

_DISTRIBUTIONS = ("ttft_ms", "request_ms", "chunk_gap_ms", "added_itl_ms", "lateness_ms", "kept_pace")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Counts are of the window. Distributions are of the requests that were sent before its end."""

    num_tokens: int
    num_chunks: int
    num_requests: int  # that ended in the window
    num_sent: int  # in all
    num_failed: int  # in all
    errors: dict[str, int]  # the five most frequent, with their counts
    ttft_ms: Quantiles
    request_ms: Quantiles
    chunk_gap_ms: Quantiles
    added_itl_ms: Quantiles  # empty without a pace, like the two below
    lateness_ms: Quantiles
    kept_pace: Quantiles  # each stream's
    arrivals_s: list[list[float]] = field(default_factory=list)  # of each stream's tokens, where the load keeps them

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> LoadResult:
        """Read the output of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        for name in _DISTRIBUTIONS:
            fields[name] = Quantiles(fields[name]["num_values"], tuple(fields[name]["points"]))
        return cls(**fields)


def summarize(load: Load, target: Target, records: Sequence[StreamRecord], window_start_s: float) -> LoadResult:
    """Return the result of a load.

    Args:
        window_start_s: of time.monotonic().
    """
    window_end_s = window_start_s + load.window_s
    right = [record for record in records if not record.error]
    arrivals = [
        token_arrivals(record.chunk_times_s, record.chunk_chars, record.num_tokens, target.token_ends)
        for record in right
    ]
    measured = [
        (record, times)
        for record, times in zip(right, arrivals, strict=True)
        if record.ended_s >= window_start_s and len(times)
    ]
    itl_s = (load.itl_ms or math.nan) / 1e3
    paced = [times for _, times in measured] if load.itl_ms is not None else []
    wrong = Counter(record.error for record in records if record.error)
    return LoadResult(
        num_tokens=sum(_num_within(times, window_start_s, window_end_s) for times in arrivals),
        num_chunks=sum(_num_within(np.array(r.chunk_times_s), window_start_s, window_end_s) for r in right),
        num_requests=sum(window_start_s <= record.ended_s < window_end_s for record in right),
        num_sent=len(records),
        num_failed=len(records) - len(right),
        errors=dict(wrong.most_common(5)),
        ttft_ms=Quantiles.of([(record.chunk_times_s[0] - record.sent_s) * 1e3 for record, _ in measured]),
        request_ms=Quantiles.of([(record.ended_s - record.sent_s) * 1e3 for record, _ in measured]),
        chunk_gap_ms=_joined_ms([np.diff(record.chunk_times_s) for record, _ in measured]),
        added_itl_ms=_joined_ms([added_inter_token_s(times, itl_s) for times in paced]),
        lateness_ms=_joined_ms([lateness_s(times, itl_s) for times in paced]),
        kept_pace=Quantiles.of([kept_pace(times, itl_s) for times in paced if len(times) > 1]),
        arrivals_s=[times.tolist() for times in arrivals] if load.keeps_arrivals else [],
    )


def _num_within(times_s: Floats, start_s: float, end_s: float) -> int:
    return int(((times_s >= start_s) & (times_s < end_s)).sum())


def _joined_ms(parts_s: Sequence[Floats]) -> Quantiles:
    return Quantiles.of(np.concatenate(parts_s) * 1e3 if parts_s else [])
