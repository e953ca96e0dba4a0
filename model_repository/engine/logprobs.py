"""Log probabilities in the model's raw distribution: before bias, penalties, temperature and constraints."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model_repository.contract.output import DrawnLogprob

type Logits = Sequence[float] | npt.NDArray[np.float32] | npt.NDArray[np.float64]


def token_logprob(logits: Logits, token_id: int, num_top: int, *, is_ranked: bool = False) -> DrawnLogprob:
    """Return a token's natural-log probability and the `num_top` most likely tokens. Of equals, lower ids win.

    Args:
        is_ranked: also return the token's place among all.
    """
    values = _log_softmax(logits)
    own = values[token_id]
    rank = 1 + int((values > own).sum() + (values[:token_id] == own).sum()) if is_ranked else None
    return DrawnLogprob(float(own), _most_likely(values, num_top), rank)


def is_distribution(logits: Logits) -> bool:
    """Whether logits give each token a probability: the largest is finite. A NaN counts as the largest."""
    return bool(np.isfinite(np.max(logits)))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    # An array takes half the time of np.array on a list.
    values = logits.astype(np.float64) if isinstance(logits, np.ndarray) else np.frombuffer(array("d", logits))
    if not is_distribution(values):
        return np.full_like(values, np.nan)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    return values


def _most_likely(values: npt.NDArray[np.float64], num_top: int) -> tuple[tuple[int, float], ...]:
    num_top = min(num_top, len(values))
    if num_top == 0:
        return ()
    least = np.partition(values, -num_top)[-num_top]
    token_ids = np.flatnonzero(values >= least)  # more than num_top if several are equal
    token_ids = token_ids[np.argsort(-values[token_ids], kind="stable")][:num_top]
    return tuple(zip(token_ids.tolist(), values[token_ids].tolist(), strict=True))
