"""The arithmetic of latencies: quantiles, when tokens arrived, and how far behind the engine's pace they were.

Tokens that come in one chunk arrive together. So of two numbers both are kept: the gaps between chunks, which a reader
sees, and each token's delay. A token's added inter-token latency is its gap to the token before it (0 within a chunk)
less the engine's pace; its lateness is how far behind an even pace from the stream's first token on it is.
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
    """A distribution in 201 points: every half percent. It has no points when nothing was measured."""

    num_values: int
    points: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> Quantiles:
        """Return the quantiles of values."""
        if not len(values):
            return cls(0, ())
        return cls(len(values), tuple(np.quantile(np.asarray(values), _LEVELS).round(6).tolist()))

    def at(self, percent: float) -> float:
        """Return a percentile; one that lies between two points is interpolated. NaN when nothing was measured."""
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
    """Return the time at which each token was there: that of the chunk which has its last character.

    Args:
        token_ends: where each token ends, in characters; without it the tokens are taken to be of equal length.
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
    """Return every token's lateness; below 0 when the first token itself was late."""
    return arrivals_s - arrivals_s[0] - np.arange(len(arrivals_s)) * itl_s if len(arrivals_s) else arrivals_s


def kept_pace(arrivals_s: Floats, itl_s: float) -> float:
    """Return a stream's own pace as a share of the engine's nominal one; NaN for less than two tokens."""
    if len(arrivals_s) < 2:
        return float("nan")
    return float((len(arrivals_s) - 1) * itl_s / max(arrivals_s[-1] - arrivals_s[0], 1e-9))


def latency_after_steps_s(arrivals_s: Floats, step_times_s: Floats, itl_s: float) -> Floats:
    """Return how long after its engine step each token arrived, for tokens whose step was seen.

    A token belongs to the last step before it; steps are `itl_s` apart, so a token that is further than three quarters
    of that from every step seen has had its own missed, and is left out.
    """
    if not len(step_times_s):
        return np.empty(0)
    nearest = np.searchsorted(step_times_s, arrivals_s + itl_s / 4) - 1
    after = arrivals_s - step_times_s[np.maximum(nearest, 0)]
    return after[(nearest >= 0) & (after < 0.75 * itl_s)]


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line, in units per second."""
    return float(np.polyfit(np.asarray(times_s) - times_s[0], values, 1)[0]) if len(times_s) > 1 else 0.0
