"""Waiting for a frontend whose models answer."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from frontend.launcher.first_token import wait_for_first_tokens
from tests.frontend.connections.self_signed import make


@contextmanager
def frontend(
    not_ready: dict[str, int], tls: ssl.SSLContext | None = None, model_ids: Sequence[str] = ("org/one", "two")
) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Answer on a port; each path with 503 a number of times. Yield the port and the received requests."""
    requests: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            requests.append((self.path, body))
            not_ready[self.path] = not_ready.get(self.path, 0) - 1
            self.send_response(503 if not_ready[self.path] >= 0 else 200)
            self.end_headers()
            models = [{"id": model_id} for model_id in model_ids]
            self.wfile.write(json.dumps({"data": models} if self.path == "/v1/models" else {}).encode())

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server.server_port, requests
        server.shutdown()


def test_every_model_gets_requests_for_one_token_until_it_answers():
    with frontend({"/health/ready": 2, "/v1/completions": 1}) as (port, requests):
        assert wait_for_first_tokens("127.0.0.1", port, time.monotonic() + 30) == ["org/one", "two"]
    paths = [path for path, _ in requests]
    assert paths == ["/health/ready"] * 3 + ["/v1/models"] + ["/v1/completions"] * 3
    bodies = [json.loads(body) for path, body in requests if path == "/v1/completions"]
    assert [body["model"] for body in bodies] == ["org/one", "org/one", "two"]
    assert all(body["max_tokens"] == 1 for body in bodies)


def test_a_frontend_with_a_certificate_gets_requests_over_tls(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "frontend")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with frontend({}, tls=context) as (port, _):
        models = wait_for_first_tokens("127.0.0.1", port, time.monotonic() + 30, is_tls=True)
    assert models == ["org/one", "two"]


def test_the_error_at_the_deadline_has_the_last_answer():
    with (
        frontend({"/v1/completions": 10**9}) as (port, _),
        pytest.raises(TimeoutError, match=r"POST /v1/completions: \{\}"),
    ):
        wait_for_first_tokens("127.0.0.1", port, time.monotonic() + 0.2)
