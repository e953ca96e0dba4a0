"""A conversation in the terminal with a model behind an OpenAI HTTP API."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any, TextIO
from urllib.parse import urlsplit

from frontend.settings import SettingsError
from frontend.terminal import Colour, coloured

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  # with it, input() edits a line, and the arrow keys bring earlier ones back

_DATA = b"data: "
_TIMEOUT_S = 600.0  # one read; a large model may take long to its first token

type Message = dict[str, str]


class ChatFailed(Exception):
    """The server refused a request, ended a stream with an error, or cannot be reached.

    Args:
        code: of an OpenAI error; empty: none.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ChatClient:
    """Streams the answers of one server.

    Args:
        url: of the server, with or without /v1.
        key: the API key; empty: none.
        is_verified: check the certificate of the server.

    Raises:
        SettingsError: not a URL.
    """

    def __init__(self, url: str, key: str = "", *, is_verified: bool = True) -> None:
        try:
            self._url = urlsplit(url if "//" in url else f"http://{url}")
            self._address = self._url.hostname or "", self._url.port
        except ValueError as exc:
            raise SettingsError(f"--url={url}: {exc}") from exc
        if not self._address[0] or self._url.scheme not in ("http", "https"):
            raise SettingsError(f"--url={url}: expected http://HOST:PORT or https://HOST:PORT")
        self.finish_reason = ""  # the last answer's
        self._path = self._url.path.rstrip("/").removesuffix("/v1")
        self.url = f"{self._url.scheme}://{self._url.netloc}{self._path}"  # without /v1
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._ssl = ssl.create_default_context() if is_verified else ssl._create_unverified_context()

    def models(self) -> dict[str, int]:
        """Return how many tokens an answer of each model may have; 0: the server decides.

        Conch ends an answer after 256 tokens if a request names no limit; others go on to the end of the window.

        Raises:
            ChatFailed: the server refuses the request, cannot be reached, or has no models.
        """
        with self._understood():
            cards = json.loads(b"".join(self._lines("GET", "/v1/models")))["data"]
            if not cards:
                raise ChatFailed("the server has no models")
            return {card["id"]: card["max_model_len"] if card["owned_by"] == "conch" else 0 for card in cards}

    def answer(self, model: str, messages: list[Message], max_tokens: int) -> Iterator[str]:
        """Yield the pieces of an answer.

        Args:
            max_tokens: 0: the server decides.

        Raises:
            ChatFailed: the server refuses the request, ends the stream with an error, or cannot be reached.
        """
        self.finish_reason = ""
        body = {"model": model, "messages": messages, "stream": True}
        with self._understood():
            for line in self._lines(
                "POST", "/v1/chat/completions", body | ({"max_tokens": max_tokens} if max_tokens else {})
            ):
                data = line.removeprefix(_DATA).strip()
                if data == b"[DONE]":
                    return
                if not line.startswith(_DATA):
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ChatFailed(event["error"]["message"])
                for choice in event["choices"]:
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                    yield choice["delta"].get("content") or ""
        raise ChatFailed("the answer broke off")

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[bytes]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        options: dict[str, Any] = {"context": self._ssl} if self._url.scheme == "https" else {}
        connection = kind(*self._address, timeout=_TIMEOUT_S, **options)
        place = f"{self._url.scheme}://{self._url.netloc}"
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refusal(response.status, response.read())
            yield from response
        except ConnectionRefusedError as exc:
            raise ChatFailed(f"no server at {place}: `conch serve` starts one") from exc
        except OSError as exc:
            raise ChatFailed(f"{place}: {exc.strerror or exc}") from exc
        except http.client.HTTPException as exc:
            raise ChatFailed(f"{place}: a broken HTTP answer ({type(exc).__name__})") from exc
        finally:
            connection.close()

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn an answer of another form into a failure."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise ChatFailed(f"{self._url.netloc}: not the answer of an OpenAI server") from exc


def chat(
    client: ChatClient,
    model: str,
    out: TextIO,
    err: TextIO,
    read: Callable[[str], str] = input,
    *,
    is_interactive: bool = True,
) -> int:
    """Talk until the end of the input, and return the exit status: 1 if an answer of a script has failed.

    Args:
        model: empty: the first one of the server.
        is_interactive: a person reads and types. Then Ctrl-C ends an answer, and only Ctrl-D the conversation.
    """

    def note(text: str) -> None:
        err.write(f"{text}\n")
        err.flush()

    def fail(exc: ChatFailed) -> None:
        note(f"{coloured('error:', Colour.RED, err)} {exc}")

    try:
        models = client.models()
    except ChatFailed as exc:
        fail(exc)
        return 1
    model = model or next(iter(models))
    if is_interactive:
        note(f"{model}: Ctrl-C stops an answer, Ctrl-D ends the conversation, /clear begins a new one.")
    messages: list[Message] = []
    has_failed = False
    while True:
        try:
            text = read("> " if is_interactive else "")
        except EOFError:
            break
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            note("\nCtrl-D ends the conversation.")
            continue
        match text.strip():
            case "":
                continue
            case "/bye":
                break
            case "/clear":
                messages = []
                continue
        said = [*messages, {"role": "user", "content": text}]
        try:
            while not (answer := _answer(client, model, said, models.get(model, 0), out)):
                said = said[2:]
                note("(The context window is full. The oldest question and its answer are left out.)")
        except ChatFailed as exc:  # the conversation goes on from before it
            fail(exc)
            has_failed = True
            continue
        messages = [*said, answer]
        if client.finish_reason == "length":
            note("(The answer is cut off: the context window is full.)")
    if is_interactive:
        note("")
    return int(has_failed and not is_interactive)


def _answer(client: ChatClient, model: str, said: list[Message], max_tokens: int, out: TextIO) -> Message | None:
    """Write an answer as it comes, and return what came before Ctrl-C; None: the conversation is too long.

    Raises:
        ChatFailed: the answer failed, or the last question alone is too long.
    """
    text = ""
    try:
        for piece in client.answer(model, said, max_tokens):
            text += piece
            out.write(piece)
            out.flush()
    except KeyboardInterrupt:
        pass
    except ChatFailed as exc:
        if exc.code != "context_length_exceeded" or len(said) == 1:
            raise
        return None
    finally:
        if text:
            out.write("\n")
            out.flush()
    return {"role": "assistant", "content": text}


def _refusal(status: int, content: bytes) -> ChatFailed:
    """Return the failure that an answer with another status than 200 tells."""
    try:
        error = json.loads(content)["error"]
        key = " (`conch` takes it from OPENAI_API_KEY)" if status == http.client.UNAUTHORIZED else ""
        return ChatFailed(f"{error['message']}{key}", str(error.get("code") or ""))
    except (ValueError, LookupError, TypeError):
        return ChatFailed(f"HTTP status {status}, and not from an OpenAI server: is this its URL?")
