"""Waits until all models of a frontend answer, over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import Any

_POLL_S = 0.05
_REQUEST_TIMEOUT_S = 60.0  # the first token of a large model may take that long


def wait_for_first_tokens(host: str, port: int, deadline: float, key: str = "", *, is_tls: bool = False) -> list[str]:
    """Wait until the frontend is ready and every model that it lists has made a token; return the models' ids, if any.

    Args:
        deadline: by time.monotonic().
        key: the API key of the requests; empty: without a key.
        is_tls: whether the frontend uses TLS; it is our own child, so its certificate is not checked.

    Raises:
        TimeoutError: with the last answer other than 200.
    """
    frontend = _Frontend(host, port, deadline, key, is_tls)
    frontend.answer("GET", "/health/ready")  # then Triton has loaded every model that it can load
    model_ids = [model["id"] for model in frontend.answer("GET", "/v1/models")["data"]]
    for model_id in model_ids:
        frontend.answer("POST", "/v1/completions", {"model": model_id, "prompt": "Hello", "max_tokens": 1})
    return model_ids


class _Frontend:
    def __init__(self, host: str, port: int, deadline: float, key: str, is_tls: bool) -> None:
        self._context = ssl._create_unverified_context() if is_tls else None
        self._address = host, port
        self._deadline = deadline
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send the request until the status is 200, and return the answer."""
        while True:
            status, text = self._send(method, path, body)
            if status == 200:
                return json.loads(text)
            if time.monotonic() >= self._deadline:
                raise TimeoutError(f"{method} {path}: {text}")
            time.sleep(_POLL_S)

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int | None, str]:
        """Send the request once; return the status, or None without an answer, and the text of the answer or error."""
        timeout_s = min(max(self._deadline - time.monotonic(), 0.1), _REQUEST_TIMEOUT_S)
        connection = self._connection(timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as exc:
            return None, str(exc) or type(exc).__name__
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(*self._address, timeout=timeout_s)
        return http.client.HTTPSConnection(*self._address, timeout=timeout_s, context=self._context)
