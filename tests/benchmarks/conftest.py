from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.benchmarks.load import Target
from tests.benchmarks.sse_answers import chat_events, chunked_response


class _Handler(BaseHTTPRequestHandler):
    """Answers a chat at once: a token is an x. The model `short` ends too early, and `refuses` is not there."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "refuses":
            self.send_error(404)
            return
        num_tokens = body["max_tokens"] - (body["model"] == "short")
        self.wfile.write(chunked_response(chat_events(["x"] * num_tokens)))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _serving() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def instant_url() -> Iterator[str]:
    """A server that answers chats at once."""
    with _serving() as url:
        yield url


@pytest.fixture
def instant(instant_url: str) -> Target:
    """Its model that does what it is asked for."""
    return Target(url=instant_url, model="right")
