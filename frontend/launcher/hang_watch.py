"""Kills a tritonserver that hangs: it runs, but no longer answers health checks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Self

from frontend.launcher.child import Child
from frontend.settings import Settings, SettingsError

_CHECKS_PER_LIMIT = 10  # each needs a new connection


class HangClock:
    """Judges whether a server hangs, from the results of health checks. Pure.

    Args:
        limit_s: seconds of silence.
        start_limit_s: seconds of silence, for a server that was restarted and still loads its models.
        pid: the process that has answered already.
        clock: monotonic seconds.
    """

    def __init__(
        self, limit_s: float, start_limit_s: float, pid: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits_s = limit_s, start_limit_s
        self._clock = clock
        self._pid = pid
        self._is_starting = False
        self._answered_at_s = clock()

    def hangs(self, pid: int, *, is_silent: bool) -> bool:
        """Note the result of a health check; return whether the process with this id hangs."""
        if pid != self._pid or not is_silent:
            self._pid, self._is_starting, self._answered_at_s = pid, is_silent, self._clock()
        return self._clock() - self._answered_at_s >= self._limits_s[self._is_starting]


class HangWatch:
    """Checks the health of a server in a thread of its own, and kills the server when it hangs. A context manager.

    Args:
        server: a server that is ready; its supervisor starts it again.
        settings: the settings of the frontend, for the connection to the server.
        limits_s: seconds of silence: after an answer, and after a restart.
        log: called with each line, from the thread.
    """

    def __init__(
        self,
        server: Child,
        settings: Settings,
        limits_s: tuple[float, float],
        log: Callable[[str], None],
    ) -> None:
        self._server = server
        self._settings = settings
        self._limits_s = limits_s
        self._log = log
        self._has_ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=lambda: asyncio.run(self._watch()), name="hang-watch", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Let the thread end; it does not kill the server any more."""
        self._has_ended.set()

    async def _watch(self) -> None:
        from frontend.triton.commands import check_endpoint  # a large import: the launcher starts at once

        clock = HangClock(*self._limits_s, self._server.pid)
        while not self._has_ended.is_set():
            await asyncio.sleep(self._limits_s[0] / _CHECKS_PER_LIMIT)
            pid = self._server.pid
            try:
                result = await check_endpoint(self._settings, model="", is_generating=False)
            except SettingsError:  # the certificates are being replaced: no check was made
                continue
            hangs = clock.hangs(pid, is_silent=result.is_silent) and self._server.pid == pid
            if hangs and not self._has_ended.is_set():
                self._log(f"{self._server.name} runs, but answers no health check any more; it is killed")
                await asyncio.to_thread(self._server.kill)
