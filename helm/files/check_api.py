"""Asks the API for its models, and each of them for a chat and for a stream. Status 0: all of it was answered.

    check_api.py URL MODEL...

`CONCH_KEY_FILE` names a file with the API key to ask with. Python's standard library only.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

_TIMEOUT_S = 300


class CheckFailed(Exception):
    """An answer is not what it must be."""


def check(url: str, models: list[str]) -> None:
    """Ask for everything.

    Raises:
        CheckFailed: says which answer is wrong.
        OSError: there is none.
    """
    with _ask(url, "/v1/models") as response:
        served = [model["id"] for model in json.load(response)["data"]]
    if missing := [model for model in models if model not in served]:
        raise CheckFailed(f"GET /v1/models: {', '.join(missing)} are not among {', '.join(served) or 'none'}")
    print(f"ok: serves {', '.join(served)}")
    for model in models:
        print(f"ok: {model} answers {_chat(url, model)!r}")
        print(f"ok: {model} streams {_stream(url, model)} events")


def _chat(url: str, model: str) -> str:
    with _ask(url, "/v1/chat/completions", _chat_body(model)) as response:
        answer = json.load(response)
    text = answer["choices"][0]["message"]["content"]
    if not text or answer["choices"][0]["finish_reason"] not in ("stop", "length"):
        raise CheckFailed(f"chat with {model}: {answer}")
    return str(text)


def _stream(url: str, model: str) -> int:
    """Return the number of a stream's events before [DONE]."""
    with _ask(url, "/v1/chat/completions", {**_chat_body(model), "stream": True}) as response:
        events = [line[len(b"data: ") :].strip() for line in response if line.startswith(b"data: ")]
    chunks = [json.loads(event) for event in events[:-1]]
    if events[-1:] != [b"[DONE]"] or not chunks or any("error" in chunk for chunk in chunks):
        raise CheckFailed(f"stream of {model}: {events[-2:]}")
    return len(chunks)


def _chat_body(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
    request = urllib.request.Request(url + path, headers={"Content-Type": "application/json"})
    if key_file := os.environ.get("CONCH_KEY_FILE"):
        request.add_header("Authorization", f"Bearer {Path(key_file).read_text(encoding='utf-8').strip()}")
    if body is not None:
        request.data = json.dumps(body).encode()
    # The certificate is that of the API's public name, and this asks the Service inside the cluster.
    context = ssl._create_unverified_context() if url.startswith("https:") else None
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context)
    except urllib.error.HTTPError as exc:
        raise CheckFailed(f"{path}: {exc.code} {exc.read().decode('utf-8', 'replace')}") from exc
    return response


if __name__ == "__main__":
    try:
        check(sys.argv[1].rstrip("/"), sys.argv[2:])
    except (CheckFailed, OSError) as failure:
        sys.exit(f"failed: {failure}")
