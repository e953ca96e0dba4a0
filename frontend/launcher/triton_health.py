"""What `serve` does with health checks: it waits for the first tokens, and later kills a child that hangs."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from frontend.errors import APIError
from frontend.launcher.child import Child
from frontend.settings import Settings, SettingsError
from frontend.tls_files import unverified_context

if TYPE_CHECKING:
    from frontend.triton.health_checks import HealthResult

_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 10.0  # one request to the frontend
_TOKEN_TIMEOUT_S = 60.0  # the first token of a large model may take that long
_CHECKS_PER_LIMIT = 10  # each needs a new connection


def wait_for_first_tokens(settings: Settings, url: str, deadline: float) -> list[str]:
    """Wait until the frontend is ready and every model of its Triton has made a token; return their names, if any.

    Args:
        settings: of the frontend, for the connection to Triton.
        url: of the frontend.
        deadline: by time.monotonic().

    Raises:
        TimeoutError: with the last reason to wait.
    """

    def go_on_waiting(reason: str) -> None:
        if time.monotonic() >= deadline:
            raise TimeoutError(reason)
        time.sleep(_POLL_S)

    while reason := _why_not_ready(url):
        go_on_waiting(reason)
    while True:  # Triton has loaded every model that it can load
        timeout_s = min(max(deadline - time.monotonic(), _POLL_S), _TOKEN_TIMEOUT_S)
        try:
            result = asyncio.run(_check(settings, is_generating=True, deadline_s=timeout_s, needs_key=True))
        except SettingsError as exc:
            go_on_waiting(str(exc))
        else:
            if result.names is not None:
                return list(result.names)
            go_on_waiting(result.reason)


def path_to_try(settings: Settings, model: str) -> str:
    """Return the path of the frontend for which a model is made; that of chats if Triton does not tell.

    This asks Triton: the frontend may want an API key.
    """
    from frontend.triton.commands import path_to_try

    try:
        return asyncio.run(path_to_try(settings, model))
    except (APIError, SettingsError):
        return "/v1/chat/completions"


def _why_not_ready(url: str) -> str:
    """Return the reason why a frontend is not ready, or nothing."""
    try:
        _get(f"{url}/health/ready")
    except HTTPError as exc:
        return f"GET /health/ready: {exc.read().decode('utf-8', 'replace')}"
    except (OSError, http.client.HTTPException) as exc:
        return f"GET /health/ready: {exc or type(exc).__name__}"
    return ""


def _get(url: str) -> None:
    """Ask a frontend, which is our own child, so that its certificate needs no check."""
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=unverified_context()))
    with opener.open(url, timeout=_ANSWER_TIMEOUT_S):
        pass


async def _check(settings: Settings, **options: Any) -> HealthResult:
    """Check all models of a Triton; see `check_endpoint`.

    The event loop of an earlier check is closed. gRPC may still have events for it, which fail in the present loop.
    """
    from frontend.triton.commands import check_endpoint  # a large import, which is made while the models load

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("exception")) != "Event loop is closed":
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(report)
    return await check_endpoint(settings, model="", **options)


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


async def is_triton_silent(settings: Settings) -> bool:
    """Whether a Triton answers no health check.

    Args:
        settings: of the frontend, for the connection.

    Raises:
        SettingsError: the certificates are being replaced.
    """
    return (await _check(settings, is_generating=False)).is_silent


async def is_silent(url: str) -> bool:
    """Whether a frontend answers no health check."""
    try:
        await asyncio.to_thread(_get, f"{url}/health/live")
    except HTTPError:
        return False
    except (OSError, http.client.HTTPException):
        return True
    return False


@contextmanager
def hang_watch(
    child: Child, is_silent: Callable[[], Awaitable[bool]], limits_s: tuple[float, float], log: Callable[[str], None]
) -> Iterator[None]:
    """Check the health of a child during the block, in another thread, and kill it when it hangs.

    Args:
        child: it is ready; its supervisor starts it again.
        is_silent: makes a check.
        limits_s: seconds of silence: after an answer, and after a restart.
        log: called with each line, from the thread.
    """
    has_ended = threading.Event()

    async def watch() -> None:
        clock = HangClock(*limits_s, child.pid)
        while not has_ended.is_set():
            await asyncio.sleep(limits_s[0] / _CHECKS_PER_LIMIT)
            pid = child.pid
            try:
                was_silent = await is_silent()
            except SettingsError:
                continue
            hangs = clock.hangs(pid, is_silent=was_silent) and child.pid == pid
            if hangs and not has_ended.is_set():
                log(f"{child.name} runs, but answers no health check any more: killed")
                await asyncio.to_thread(child.kill)

    threading.Thread(target=lambda: asyncio.run(watch()), name="hang-watch", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
