"""A completion that may have certain tokens only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_repository.engine.token_constraint import TokenConstraint


class AllowedTokenIds(TokenConstraint):
    """A fixed set of allowed tokens, and another constraint beside it.

    Args:
        token_ids: the allowed ones, each below vocab_size.
        vocab_size: the number of the model's logits.
        inner: further restricts the tokens.
    """

    def __init__(self, token_ids: Sequence[int], vocab_size: int, inner: TokenConstraint | None) -> None:
        self._mask = np.zeros(vocab_size, dtype=np.bool_)
        self._mask[list(token_ids)] = True
        self._inner = inner

    def take(self, token_id: int) -> bool:
        return bool(self._mask[token_id]) and (self._inner is None or self._inner.take(token_id))

    def allowed(self) -> NDArray[np.bool_]:
        return self._mask if self._inner is None else self._mask & self._inner.allowed()
