"""A small client of the HTTP API, with the standard library."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_TIMEOUT_S = 300.0


class CheckFailed(Exception):
    """The server answered otherwise than it should; the message says how."""


@dataclass(frozen=True, slots=True)
class TimedStream:
    """When the tokens of one stream came."""

    first_token_s: float
    last_token_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one model of one server."""

    url: str
    model: str

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            CheckFailed: its status is not 200.
        """
        status, answer = self.post(path, {"model": self.model, **fields})
        if status != 200:
            raise CheckFailed(f"status {status}: {answer}")
        return dict(answer)

    def choice(self, **fields: Any) -> dict[str, Any]:
        """Return the first choice of a completion."""
        choice: dict[str, Any] = self.ask(COMPLETIONS, **fields)["choices"][0]
        return choice

    def choices_at_once(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the first choice of each of several completions that run at the same time."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda fields: self.choice(**fields), requests))

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Return status and answer."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def timed(self, **fields: Any) -> TimedStream:
        """Stream a completion to its end, and say when its tokens came; seconds since the request."""
        started = time.monotonic()
        first = last = 0.0
        num_tokens = 0
        for event in self._events(fields | {"stream_options": {"include_usage": True}}):
            if "error" in event:
                raise CheckFailed(str(event["error"]))
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
            elif event["choices"]:
                last = time.monotonic() - started
                first = first or last
        return TimedStream(first, last, num_tokens)

    def hang_up(self, **fields: Any) -> None:
        """Stream a completion and leave at its first event."""
        events = self._events(fields)
        next(events, None)
        events.close()

    def _events(self, fields: dict[str, Any]) -> Generator[dict[str, Any]]:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
        try:
            body = json.dumps({"model": self.model, "stream": True, **fields})
            connection.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise CheckFailed(f"status {answer.status}: {answer.read().decode('utf-8', 'replace')}")
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))
        finally:
            connection.close()
