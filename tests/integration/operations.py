"""A server with API keys and an operations port, and its clients."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import openai

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.stack import Stack


@dataclass(frozen=True)
class Server:
    """A running server with keys."""

    stack: Stack
    admin_url: str
    key_file: KeyFile

    def client(self, name: str, url: str = "") -> openai.OpenAI:
        """Return the official client with a key, of this server or of another that has the same keys."""
        base_url = f"{url or self.stack.url}/v1"
        return openai.OpenAI(base_url=base_url, api_key=self.key_file.texts[name], max_retries=0, timeout=60)

    def admin(self, method: str, path: str, key: str = "admin", /, **body: Any) -> tuple[int, Any]:
        """Return status and body of an answer of the operations port."""
        headers = {**self.key_file.headers(key), "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"{self.admin_url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)
