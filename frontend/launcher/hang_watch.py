"""Notices a tritonserver that hangs: it runs, but answers no probe any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Self

from frontend.launcher.child import Child
from frontend.settings import Settings, SettingsError

_INTERVAL_S = 1.0  # between two probes


class HangClock:
    """Whether a server is silent for too long. Pure.

    Args:
        limit_s: of silence.
        start_limit_s: likewise, for one that has been started again and loads its models first.
        pid: of the process that has answered already.
        clock: monotonic seconds.
    """

    def __init__(
        self, limit_s: float, start_limit_s: float, pid: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits_s = limit_s, start_limit_s
        self._clock = clock
        self._pid = pid
        self._is_starting = False
        self._heard_at = clock()

    def probed(self, pid: int, *, is_silent: bool) -> bool:
        """Note how a probe went; return whether the process with this id hangs."""
        if pid != self._pid or not is_silent:
            self._pid, self._is_starting, self._heard_at = pid, is_silent, self._clock()
        return self._clock() - self._heard_at >= self._limits_s[self._is_starting]


class HangWatch:
    """Asks a server for its health from a thread of its own, and kills it when it hangs. A context manager.

    Args:
        server: that is ready; whoever supervises it starts it again.
        settings: of the frontend, which asks in the same way.
        limits_s: of silence: of one that has answered, and of one that has been started again.
        log: takes one line, from the thread.
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
        """Let the thread end; it kills nothing from here on."""
        self._has_ended.set()

    async def _watch(self) -> None:
        from frontend.triton.commands import probe_endpoint  # not before it is needed: the launcher starts at once

        clock = HangClock(*self._limits_s, self._server.pid)
        while not self._has_ended.is_set():
            await asyncio.sleep(_INTERVAL_S)
            pid = self._server.pid
            try:
                probed = await probe_endpoint(self._settings, model="", is_generating=False)
            except SettingsError:  # certificates that are being replaced: nothing was asked
                continue
            hangs = clock.probed(pid, is_silent=probed.is_silent) and self._server.pid == pid
            if hangs and not self._has_ended.is_set():
                self._log(f"{self._server.name} runs, but answers no probe any more; it is killed")
                await asyncio.to_thread(self._server.kill)
