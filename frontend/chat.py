"""A conversation in the terminal with a model behind an OpenAI HTTP API."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any, TextIO
from urllib.parse import urlsplit

from frontend.terminal import Colour, coloured

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  # with it, input() edits a line, and the arrow keys bring earlier ones back

_DATA = b"data: "
_TIMEOUT_S = 600.0  # of a read; a large model may take long to its first token

type Message = dict[str, str]


class ChatFailed(Exception):
    """The server refused a request, ended a stream with an error, or cannot be reached."""


class ChatClient:
    """Streams the answers of one server.

    Args:
        url: of the server, with or without /v1.
        key: the API key; empty: none.
        is_verified: check the certificate of the server.
    """

    def __init__(self, url: str, key: str = "", *, is_verified: bool = True) -> None:
        self._url = urlsplit(url if "//" in url else f"http://{url}")
        self._path = self._url.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._ssl = ssl.create_default_context() if is_verified else ssl._create_unverified_context()

    def models(self) -> list[str]:
        """Return the ids of the models.

        Raises:
            ChatFailed: the server refuses the request or cannot be reached.
        """
        text = b"".join(self._lines("GET", "/v1/models"))
        return [model["id"] for model in json.loads(text)["data"]]

    def answer(self, model: str, messages: list[Message]) -> Iterator[str]:
        """Yield the pieces of an answer.

        Raises:
            ChatFailed: the server refuses the request, ends the stream with an error, or cannot be reached.
        """
        body = {"model": model, "messages": messages, "stream": True}
        for line in self._lines("POST", "/v1/chat/completions", body):
            if not line.startswith(_DATA) or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line.removeprefix(_DATA))
            if "error" in event:
                raise ChatFailed(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[bytes]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        options: dict[str, Any] = {"context": self._ssl} if self._url.scheme == "https" else {}
        connection = kind(self._url.hostname or "", self._url.port, timeout=_TIMEOUT_S, **options)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ChatFailed(_message(response.read()))
            yield from response
        except (OSError, http.client.HTTPException) as exc:
            raise ChatFailed(f"{self._url.netloc}: {exc or type(exc).__name__}") from exc
        finally:
            connection.close()


def chat(client: ChatClient, model: str, out: TextIO, read: Callable[[str], str] = input) -> int:
    """Talk until the end of the input, and return the exit status. Ctrl-C ends an answer, or at the prompt the chat.

    Args:
        model: empty: the first one of the server.
    """
    messages: list[Message] = []
    try:
        model = model or client.models()[0]
        out.write(f"{model}: Ctrl-C stops an answer, Ctrl-D ends the conversation.\n")
        while True:
            text = read("> ")
            if not text.strip():
                continue
            said = [*messages, {"role": "user", "content": text}]
            try:
                messages = [*said, {"role": "assistant", "content": _shown(client.answer(model, said), out)}]
            except ChatFailed as exc:  # the conversation goes on from before it
                out.write(f"{coloured('error:', Colour.RED, out)} {exc}\n")
    except (EOFError, KeyboardInterrupt):
        out.write("\n")
        return 0
    except ChatFailed as exc:
        out.write(f"{coloured('error:', Colour.RED, out)} {exc}\n")
        return 1


def _shown(pieces: Iterator[str], out: TextIO) -> str:
    """Write the pieces of an answer as they come, and return those that came before Ctrl-C."""
    text = ""
    try:
        for piece in pieces:
            text += piece
            out.write(piece)
            out.flush()
    except KeyboardInterrupt:
        pass
    out.write("\n")
    return text


def _message(content: bytes) -> str:
    """Return the message of an OpenAI error, or the beginning of another answer."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
