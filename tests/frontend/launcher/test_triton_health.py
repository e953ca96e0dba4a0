"""Waiting for the first tokens, and the time after which a tritonserver hangs."""

from __future__ import annotations

import asyncio
import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frontend.launcher.triton_health import HangClock, wait_for_first_tokens
from frontend.settings import Settings, SettingsError
from frontend.triton.health_checks import HealthResult
from tests.frontend.connections.self_signed import make
from tests.frontend.triton.test_models import Clock

type Checks = list[HealthResult | SettingsError]


@contextmanager
def frontend(num_not_ready: int, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answer on a port, with 503 a number of times; yield the URL."""
    statuses = iter([503] * num_not_ready)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health/ready"
            self.send_response(next(statuses, 200))
            self.end_headers()
            self.wfile.write(b"state")

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """The results of the health checks of Triton, the last one first."""
    checks: Checks = [HealthResult(True, "demo made a token", names=("demo", "short"))]

    async def check(
        settings: Settings, *, model: str, is_generating: bool, deadline_s: float, needs_key: bool
    ) -> HealthResult:
        assert (model, is_generating, needs_key) == ("", True, True) and deadline_s <= 60.0
        result = checks.pop()
        if isinstance(result, SettingsError):
            raise result
        return result

    monkeypatch.setattr("frontend.triton.commands.check_endpoint", check)
    return checks


def test_the_frontend_must_be_ready_and_every_model_make_a_token(checks: Checks) -> None:
    checks += [HealthResult(False, "engine_failed: no"), SettingsError("the certificates are being replaced")]
    with frontend(num_not_ready=2) as url:
        assert wait_for_first_tokens(Settings(), url, time.monotonic() + 30) == ["demo", "short"]


def test_a_frontend_with_a_certificate_gets_requests_over_tls(tmp_path: Path, checks: Checks) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make(tmp_path, "frontend"))
    with frontend(0, context) as url:
        assert wait_for_first_tokens(Settings(), url, time.monotonic() + 30)


def test_without_a_model_there_is_none_to_wait_for(checks: Checks) -> None:
    checks.append(HealthResult(False, "no model is ready", names=()))
    with frontend(0) as url:
        assert wait_for_first_tokens(Settings(), url, time.monotonic() + 30) == []


def test_the_error_at_the_deadline_has_the_last_reason(checks: Checks) -> None:
    checks += [HealthResult(False, "engine_failed: no")]
    with frontend(10**6) as url, pytest.raises(TimeoutError, match=r"^GET /health/ready: state$"):
        wait_for_first_tokens(Settings(), url, time.monotonic())
    with frontend(0) as url, pytest.raises(TimeoutError, match=r"^engine_failed: no$"):
        wait_for_first_tokens(Settings(), url, time.monotonic())
    with pytest.raises(TimeoutError, match=r"^GET /health/ready: .*refused"):
        wait_for_first_tokens(Settings(), url, time.monotonic())


def test_a_server_that_has_answered_hangs_after_the_limit() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    time.now += 29.0
    assert not clock.hangs(1, is_silent=True)
    time.now += 1.0
    assert clock.hangs(1, is_silent=True)


def test_an_answer_ends_the_silence() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    for _ in range(3):
        time.now += 20.0
        assert not clock.hangs(1, is_silent=True)
        time.now += 9.0
        assert not clock.hangs(1, is_silent=False)


def test_a_server_that_was_started_again_has_longer_until_it_answers() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    assert not clock.hangs(2, is_silent=True)
    time.now += 119.0
    assert not clock.hangs(2, is_silent=True)
    time.now += 1.0
    assert clock.hangs(2, is_silent=True)


def test_a_late_event_of_an_earlier_check_is_no_line_on_the_terminal(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC hands it to the loop of the next check: two tracebacks stood in the middle of a conversation."""

    async def check(settings: Settings, **options: Any) -> HealthResult:
        closed = asyncio.new_event_loop()
        closed.close()
        loop = asyncio.get_running_loop()
        loop.call_soon(closed.call_soon_threadsafe, print)
        loop.call_soon([].pop)
        await asyncio.sleep(0)
        return HealthResult(True, "", names=("demo",))

    monkeypatch.setattr("frontend.triton.commands.check_endpoint", check)
    with frontend(0) as url:
        assert wait_for_first_tokens(Settings(), url, time.monotonic() + 30) == ["demo"]
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["pop from empty list"]
