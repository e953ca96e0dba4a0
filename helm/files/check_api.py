"""Requests the list of models, and a chat and a stream from each, an embedding or scores. Status 0: all are right.

    check_api.py URL [--resting MODEL]... MODEL...

A resting model may be scaled to zero; then its answer is 503 with Retry-After. `CONCH_KEY_FILE` names a file with the
API key. The script uses only Python's standard library.
"""

from __future__ import annotations

import argparse
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
_QUESTION = "What is the capital of France?"


class CheckFailed(Exception):
    """An answer is wrong."""


class NotReady(CheckFailed):
    """An answer is 503 with Retry-After."""

    def __init__(self, message: str, retry_after_s: str) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def check(url: str, models: list[str], resting: list[str]) -> None:
    """Send all requests.

    Args:
        url: address of the API, without a final slash.
        models: models that must be served.
        resting: models that may be scaled to zero.

    Raises:
        CheckFailed: an answer is wrong.
        OSError: an answer is missing.
    """
    served = _served(url)
    if missing := [model for model in models if model not in served]:
        raise CheckFailed(f"GET /v1/models: {', '.join(missing)} are missing in {', '.join(served) or 'an empty list'}")
    print(f"ok: serves {', '.join(served) or 'none'}")
    for model in [*models, *resting]:
        try:
            if model not in served:  # it is known once it is awake
                _request(url, "/tokenize", {"model": model, "prompt": _QUESTION}).close()
                served = _served(url)
            match served.get(model):
                case "embed":
                    print(f"ok: {model} embeds in {_embed(url, model)} dimensions")
                case "score":
                    print(f"ok: {model} scores {_rerank(url, model)} documents")
                case _:
                    print(f"ok: {model} answers {_chat(url, model)!r}")
                    print(f"ok: {model} streams {_stream(url, model)} events")
        except NotReady as exc:
            if model not in resting:
                raise
            print(f"ok: {model} is scaled to zero; retry in {exc.retry_after_s} s")


def _served(url: str) -> dict[str, str]:
    """Return the task of each model."""
    with _request(url, "/v1/models") as response:
        return {model["id"]: model.get("task", "generate") for model in json.load(response)["data"]}


def _embed(url: str, model: str) -> int:
    """Return the number of dimensions."""
    with _request(url, "/v1/embeddings", {"model": model, "input": _QUESTION}) as response:
        vector = json.load(response)["data"][0]["embedding"]
    if abs(sum(number * number for number in vector) - 1) > 1e-3:
        raise CheckFailed(f"embedding by {model}: its length is not 1")
    return len(vector)


def _rerank(url: str, model: str) -> int:
    """Return the number of documents with a score."""
    documents = ["Paris is the capital of France.", "Bananas are yellow."]
    with _request(url, "/v1/rerank", {"model": model, "query": _QUESTION, "documents": documents}) as response:
        results = json.load(response)["results"]
    if sorted(result["index"] for result in results) != [0, 1]:
        raise CheckFailed(f"scores of {model}: {results}")
    return len(results)


def _chat(url: str, model: str) -> str:
    with _request(url, "/v1/chat/completions", _chat_body(model)) as response:
        answer = json.load(response)
    message = answer["choices"][0]["message"]
    text = message["content"] or message.get("reasoning")  # a model may think until its answer is cut
    if not text or answer["choices"][0]["finish_reason"] not in ("stop", "length"):
        raise CheckFailed(f"chat with {model}: {answer}")
    return str(text)


def _stream(url: str, model: str) -> int:
    """Return the number of a stream's events before [DONE]."""
    with _request(url, "/v1/chat/completions", {**_chat_body(model), "stream": True}) as response:
        events = [line[len(b"data: ") :].strip() for line in response if line.startswith(b"data: ")]
    chunks = [json.loads(event) for event in events[:-1]]
    if events[-1:] != [b"[DONE]"] or not chunks or any("error" in chunk for chunk in chunks):
        raise CheckFailed(f"stream of {model}: {events[-2:]}")
    return len(chunks)


def _chat_body(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": _QUESTION}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}


def _request(url: str, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
    request = urllib.request.Request(url + path, headers={"Content-Type": "application/json"})
    if key_file := os.environ.get("CONCH_KEY_FILE"):
        request.add_header("Authorization", f"Bearer {Path(key_file).read_text(encoding='utf-8').strip()}")
    if body is not None:
        request.data = json.dumps(body).encode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate has the API's public name, not the Service's inside the cluster
    context.verify_mode = ssl.CERT_NONE
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context)
    except urllib.error.HTTPError as exc:
        message, retry_after_s = (
            f"{path}: {exc.code} {exc.read().decode('utf-8', 'replace')}",
            exc.headers["Retry-After"],
        )
        raise (NotReady(message, retry_after_s) if exc.code == 503 and retry_after_s else CheckFailed(message)) from exc
    return response


if __name__ == "__main__":
    try:
        parser = argparse.ArgumentParser()
        parser.add_argument("url")
        parser.add_argument("--resting", action="append", default=[])
        parser.add_argument("models", nargs="*")
        options = parser.parse_args()
        check(options.url.rstrip("/"), options.models, options.resting)
    except (CheckFailed, OSError) as failure:
        sys.exit(f"failed: {failure}")
