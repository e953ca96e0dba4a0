"""Arithmetic of latencies: quantiles, arrival times of tokens, and delays against the engine's pace.

Tokens of one chunk arrive together, so two numbers are kept: the gaps between chunks, which a reader sees, and the
delay of each token. The added inter-token latency of a token is its gap to the token before it (0 within a chunk)
minus the engine's pace. The lateness is its delay against an even pace from the first token on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LEVELS = np.linspace(0, 1, 201)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution in 201 points, one each half percent. An empty one has no points."""

    num_values: int
    points: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> Quantiles:
        """Return the quantiles of values."""
        if not len(values):
            return cls(0, ())
        return cls(len(values), tuple(np.quantile(np.asarray(values), _LEVELS).round(6).tolist()))

    def at(self, percent: float) -> float:
        """Return a percentile, interpolated between two points. NaN for an empty distribution."""
        return float(np.interp(percent / 100, _LEVELS, self.points)) if self.points else float("nan")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated measurements, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(float(np.median(values)), min(values), max(values))


def token_arrivals(
    chunk_times_s: Sequence[float], chunk_chars: Sequence[int], num_tokens: int, token_ends: Sequence[int] = ()
) -> Floats:
    """Return the arrival time of each token: that of the chunk with its last character.

    Args:
        token_ends: the end of each token, in characters; empty: tokens of equal length.
    """
    received = np.cumsum(chunk_chars)
    if not num_tokens or not len(received):
        return np.empty(0)
    if token_ends:
        ends = np.asarray(token_ends[:num_tokens], dtype=np.float64)
    else:
        ends = np.arange(1, num_tokens + 1) * (received[-1] / num_tokens)
    chunks = np.searchsorted(received, ends - 1e-6)
    return np.asarray(chunk_times_s)[np.minimum(chunks, len(received) - 1)]


def added_inter_token_s(arrivals_s: Floats, itl_s: float) -> Floats:
    """Return the added inter-token latency of every token but the first."""
    return np.diff(arrivals_s) - itl_s


def lateness_s(arrivals_s: Floats, itl_s: float) -> Floats:
    """Return every token's lateness. It is below 0 if the first token was late."""
    return arrivals_s - arrivals_s[0] - np.arange(len(arrivals_s)) * itl_s if len(arrivals_s) else arrivals_s


def kept_pace(arrivals_s: Floats, itl_s: float) -> float:
    """Return a stream's own pace as a share of the engine's nominal one; NaN for less than two tokens."""
    if len(arrivals_s) < 2:
        return float("nan")
    return float((len(arrivals_s) - 1) * itl_s / max(arrivals_s[-1] - arrivals_s[0], 1e-9))


def latency_after_steps_s(arrivals_s: Floats, step_times_s: Floats, itl_s: float) -> Floats:
    """Return the time from its engine step to its arrival, for each token with a known step.

    A token belongs to the last step before it. Steps are `itl_s` apart, so a token that is further than three quarters
    of that from every known step is left out: its own step is unknown.
    """
    if not len(step_times_s):
        return np.empty(0)
    nearest = np.searchsorted(step_times_s, arrivals_s + itl_s / 4) - 1
    after = arrivals_s - step_times_s[np.maximum(nearest, 0)]
    return after[(nearest >= 0) & (after < 0.75 * itl_s)]


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line, in units per second."""
    return float(np.polyfit(np.asarray(times_s) - times_s[0], values, 1)[0]) if len(times_s) > 1 else 0.0
