"""What a rule over a whole completion makes of the tokens taken so far: which of them may come next."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray


class TokenConstraint(ABC):
    """The state of such a rule."""

    @abstractmethod
    def take(self, token_id: int) -> bool:
        """Append a token if it is allowed now; otherwise nothing changes.

        Raises:
            InvalidRequest: the rule is too complex to go on.
        """

    @abstractmethod
    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens are allowed now, bool [vocab_size].

        Raises:
            InvalidRequest: the rule is too complex to go on, or no token of the vocabulary continues the text.
        """

    def banned(self) -> list[int]:
        """Return the ids of the tokens that are not allowed now, ascending.

        Raises:
            InvalidRequest: as in `allowed`.
        """
        banned: list[int] = np.flatnonzero(~self.allowed()).tolist()
        return banned
