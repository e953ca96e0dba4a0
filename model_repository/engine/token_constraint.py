"""A rule over a whole completion: the tokens that may come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenConstraint(ABC):
    """The state of a rule after the tokens so far."""

    @abstractmethod
    def accept_token(self, token_id: int) -> bool:
        """Append a token and return True, if it is allowed now; otherwise change nothing.

        Raises:
            CannotContinue: the rule is too complex to continue, or has taken too much work.
        """

    @abstractmethod
    def allowed(self) -> NDArray[np.bool_]:
        """Return the tokens that are allowed now, bool [vocab_size].

        Raises:
            CannotContinue: as `accept_token`; or no token of the vocabulary continues the text.
        """


class AllowedTokenIds(TokenConstraint):
    """A fixed set of allowed tokens, with an optional inner constraint.

    Args:
        token_ids: the allowed ones, each below vocab_size.
        vocab_size: the number of the model's logits.
    """

    def __init__(self, token_ids: Sequence[int], vocab_size: int, inner: TokenConstraint | None) -> None:
        self._mask = np.zeros(vocab_size, dtype=np.bool_)
        self._mask[list(token_ids)] = True
        self._inner = inner

    def accept_token(self, token_id: int) -> bool:
        return bool(self._mask[token_id]) and (self._inner is None or self._inner.accept_token(token_id))

    def allowed(self) -> NDArray[np.bool_]:
        return self._mask if self._inner is None else self._mask & self._inner.allowed()
