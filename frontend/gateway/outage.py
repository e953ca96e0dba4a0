"""What happens while the place that keeps the limits does not answer: a documented choice, and one log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum

from frontend.errors import Overloaded

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # after a failure nobody tries again for so long: a request is not held up by what is down


class OnFailure(StrEnum):
    """What becomes of requests that cannot be counted."""

    OPEN = "open"  # they go on uncounted
    CLOSED = "closed"  # they are refused with 503


class LimitsUnavailable(Overloaded):
    """The limits cannot be checked, and nobody goes on unchecked."""

    code = "limits_unavailable"

    def __init__(self) -> None:
        super().__init__("The limits of this key cannot be checked now.")


class Outage:
    """Whether a place is down, and what that means for requests.

    Args:
        place: what is down, for the log; without credentials.
        on_failure: the choice.
    """

    def __init__(self, place: str, on_failure: OnFailure, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._on_failure = on_failure
        self._clock = clock
        self._failed_s: float | None = None  # None: it works

    @property
    def is_pause(self) -> bool:
        """Whether it has failed so lately that nobody should try."""
        return self._failed_s is not None and self._clock() - self._failed_s < _PAUSE_S

    def failed(self, cause: BaseException) -> None:
        """Note a failure; the first of an outage is logged."""
        if self._failed_s is None:
            consequence = "go on uncounted" if self._on_failure is OnFailure.OPEN else "are refused"
            logger.warning("%s does not answer, requests %s: %r", self._place, consequence, cause)
        self._failed_s = self._clock()

    def worked(self) -> None:
        """Note an answer; the first one after an outage is logged."""
        if self._failed_s is not None:
            self._failed_s = None
            logger.warning("%s answers again", self._place)

    def pass_or_refuse(self) -> None:
        """Return if a request may go on uncounted.

        Raises:
            LimitsUnavailable: it may not.
        """
        if self._on_failure is OnFailure.CLOSED:
            raise LimitsUnavailable
