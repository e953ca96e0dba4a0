"""Calls of a place that may hang: while none is answered, they fail at once, but for one that tries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from frontend.store.types import NoAnswer, StoreUnavailable

PAUSE_S = 5.0


class Breaker:
    """Makes the calls of a place. While it hangs, one call tries at a time, and only some time after the last one.

    Args:
        note: called after each call with whether it was answered.
        clock: seconds.
    """

    def __init__(self, note: Callable[[bool], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._note, self._clock = note, clock
        self._paused_until_s: float | None = None  # None: the place does not hang
        self._is_trying = False
        self._answered_s = clock()

    async def call[Result](self, function: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a call.

        Raises:
            StoreUnavailable: see Store.
        """
        is_trial = self._paused_until_s is not None
        if self._paused_until_s is not None and (self._is_trying or self._clock() < self._paused_until_s):
            self._note(False)
            raise StoreUnavailable("the place of the store did not answer a moment ago")
        self._is_trying |= is_trial
        begun_s = self._clock()
        try:
            result = await function()
        except StoreUnavailable as exc:
            self._note(False)
            if not isinstance(exc, NoAnswer):
                self._paused_until_s = None
            elif begun_s >= self._answered_s:  # else this call alone was slow: others were answered meanwhile
                self._paused_until_s = self._clock() + PAUSE_S
            raise
        finally:
            self._is_trying &= not is_trial
        self._answered_s, self._paused_until_s = self._clock(), None
        self._note(True)
        return result
