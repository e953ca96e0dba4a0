"""The policy for requests while the limits cannot be checked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from frontend.errors import Overloaded

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # pause between attempts to reach the service


class OnFailure(StrEnum):
    """The choice of `--limits-on-failure`."""

    OPEN = "open"  # requests run uncounted
    CLOSED = "closed"  # requests are refused with 503


class LimitsUnavailable(Overloaded):
    """The limits cannot be checked, and requests must not run uncounted."""

    code = "limits_unavailable"

    def __init__(self) -> None:
        super().__init__("The limits of this key cannot be checked now.")


class Outage:
    """The state of a service that keeps limits.

    Args:
        service: its name in the log, without credentials.
        on_failure: what happens to requests while it does not count.
        error: beside OSError, the error of a call that fails.
    """

    def __init__(
        self,
        service: str,
        on_failure: OnFailure,
        clock: Callable[[], float] = time.monotonic,
        error: type[Exception] = OSError,
    ) -> None:
        self._service = service
        self._on_failure = on_failure
        self._clock = clock
        self._error = error
        self._failed_at_s: float | None = None  # None: the service works

    @property
    def is_pause(self) -> bool:
        """Whether the service failed less than a second ago. Then a call would only delay a request."""
        return self._failed_at_s is not None and self._clock() - self._failed_at_s < _PAUSE_S

    async def call[Answer](self, call: Awaitable[Answer], timeout_s: float | None) -> Answer | None:
        """Return the answer to a call; None: it failed. Log the beginning and the end of an outage."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await call
        except (self._error, OSError) as exc:
            if self._failed_at_s is None:
                consequence = "run uncounted" if self._on_failure is OnFailure.OPEN else "are refused"
                reason = f"{type(exc).__name__}: {str(exc) or 'no answer in time'}"
                logger.warning("%s does not count, requests %s: %s", self._service, consequence, reason)
            self._failed_at_s = self._clock()
            return None
        if self._failed_at_s is not None:
            self._failed_at_s = None
            logger.warning("%s counts again", self._service)
        return answer

    def pass_or_refuse(self) -> None:
        """Return if a request may run uncounted, else raise LimitsUnavailable."""
        if self._on_failure is OnFailure.CLOSED:
            raise LimitsUnavailable
