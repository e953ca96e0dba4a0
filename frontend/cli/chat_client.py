"""A client of an OpenAI HTTP API: its models, and the streamed answers of chats."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
from collections.abc import Collection, Generator, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from frontend.settings import SettingsError
from frontend.tls_files import unverified_context
from model_repository.system.command_parser import expected_one_of

_CHAT = "/v1/chat/completions"
_GENERATE = "generate"
_PATHS = {"embed": "/v1/embeddings", "score": "/v1/rerank"}  # by task
_DATA = b"data: "
_DONE = b"[DONE]"
_NEWS = b": keepalive: "  # a comment that says why the answer has not begun
_COUNTS = ("prompt_tokens", "completion_tokens")  # of usage
_PHASES = ("prefill", "decode")  # of timing
_SERVER = re.compile(r"(?!https?://(huggingface|hf)\.co/)\w+://.*|([^/:]+|\[.+\]):\d+(/.*)?|\d+")
_TIMEOUT_S = 600.0  # one read; a large model may take long to its first token
_MAX_BYTES = 16 << 20  # of a line of a stream, or of another answer

type Message = dict[str, Any]


class Kind(Enum):
    """Parts of an answer, and lines about it."""

    TEXT = auto()
    THINKING = auto()
    NOTE = auto()  # one line for the person, not from the model


class Piece(NamedTuple):
    """A piece of a text."""

    text: str
    kind: Kind = Kind.TEXT


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
        url: of the server, with or without /v1; also HOST:PORT, or the port alone of a server of this machine.
        key: the API key; empty: none.
        is_verified: check the certificate of the server.
        timeout_s: for one read.

    Raises:
        SettingsError: not a URL.
    """

    def __init__(self, url: str, key: str = "", *, is_verified: bool = True, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        try:
            address = f"127.0.0.1:{url}" if url.isdecimal() else url
            self._url = urlsplit(address if "//" in address else f"http://{address}")
            self._address = self._url.hostname or "", self._url.port
        except ValueError as exc:
            raise SettingsError(f"URL={url}: {exc}") from exc
        if not self._address[0] or self._url.scheme not in ("http", "https"):
            raise SettingsError(f"URL={url}: expected http://HOST:PORT or https://HOST:PORT")
        self.finish_reason = ""  # the last answer's
        self.usage: dict[str, int] = {}  # the last answer's token counts, if the request asks for them
        self.timing_ms: dict[str, float] = {}  # of the last answer's phases, if the request asks for them
        self.limited: set[str] = set()  # models that limit an answer by themselves, as a preset may
        self.ignored: list[str] = []  # fields of the last request that had no effect
        self._path = self._url.path.rstrip("/").removesuffix("/v1")
        self.url = f"{self._url.scheme}://{self._url.netloc}{self._path}"  # without /v1
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._ssl = ssl.create_default_context() if is_verified else unverified_context()

    def cards(self) -> list[dict[str, Any]]:
        """Return the models as the server lists them.

        Raises:
            ChatFailed: the server refuses the request, cannot be reached, or is no Conch of this version.
        """
        with self._understood():
            cards = json.loads(self._whole("/v1/models"))["data"]
            for card in cards:
                _printable(card["id"]), _printable(card["task"]), _printable(card["status"]["value"])
            return _checked(list, cards)

    def news(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        """Yield why an answer has not begun, each reason once; return at its end.

        Raises:
            ChatFailed: the server refuses the request, ends it with an error, or cannot be reached.
        """
        with self._understood():
            for each in self._stream(path, body):
                if isinstance(each, str):
                    yield each

    def models(self, model: str = "") -> dict[str, int]:
        """Return how many tokens an answer of each model that chats may have; 0: the server decides.

        Conch ends an answer after 256 tokens if a request names no limit; others go on to the end of the window.

        Args:
            model: the user has named it; empty: none.

        Raises:
            ChatFailed: the server refuses the request, cannot be reached, has no models, or `model` does not chat.
        """
        with self._understood():
            cards = json.loads(self._whole("/v1/models"))["data"]
            if not cards:
                raise ChatFailed("the server has no models")
            others = {card["id"]: card["task"] for card in cards if card.get("task", _GENERATE) != _GENERATE}
            if model in others or len(others) == len(cards):
                name = model if model in others else next(iter(others))
                path = _PATHS.get(others[name], "/v1")
                raise ChatFailed(f"{name} does not chat: its task is {others[name]}, at {self.url}{path}")
            lengths = {
                _printable(card["id"]): _checked(int, card["max_model_len"]) if card["owned_by"] == "conch" else 0
                for card in cards
            }
            self.limited = {
                _printable(card["id"]) for card in cards if "max_tokens" in (card.get("default_parameters") or {})
            }
            return {name: length for name, length in lengths.items() if name not in others}

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        """Yield the pieces of the answer to a request of chat completions.

        Raises:
            ChatFailed: the server refuses the request, ends the stream with an error, or cannot be reached.
        """
        self.finish_reason, self.usage, self.timing_ms = "", {}, {}
        with self._understood():
            for event in self._stream(_CHAT, body | {"stream": True}):
                if isinstance(event, str):
                    yield Piece(f"({event})", Kind.NOTE)
                    continue
                if not event:
                    return
                if usage := event.get("usage"):
                    self.usage = {name: _checked(int, usage[name]) for name in _COUNTS if name in usage}
                    if (cached := (usage.get("prompt_tokens_details") or {}).get("cached_tokens")) is not None:
                        self.usage["cached_tokens"] = _checked(int, cached)
                if "include_timing" in body.get("stream_options", ()) and (timing := event.get("timing")):
                    self.timing_ms = {name: float(timing[name]) for name in _PHASES}
                for choice in event["choices"]:
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                    delta = choice["delta"]
                    if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
                        yield Piece(_checked(str, thinking), Kind.THINKING)
                    if text := delta.get("content"):
                        yield Piece(_checked(str, text))
        raise ChatFailed("the answer broke off")

    def check(self, body: dict[str, Any]) -> list[str]:
        """Have the server check a request, without the whole answer, and return the fields that have no effect.

        Raises:
            ChatFailed: the server refuses the request, or cannot be reached.
        """
        with self._understood(), contextlib.closing(self._lines("POST", _CHAT, body | {"stream": True})) as lines:
            next(lines, None)
        return self.ignored

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        """Yield the events of a stream, an empty one at its proper end, and why it has not begun, each reason once."""
        last = b""
        for line in self._lines("POST", path, body):
            data = line.removeprefix(_DATA).strip()
            if line.startswith(_NEWS) and line != last:
                last = line
                yield _sentence(line)
            elif data == _DONE:
                yield {}
            elif line.startswith(_DATA):
                event = _checked(dict, json.loads(data))
                if "error" in event:
                    raise ChatFailed(_checked(str, event["error"]["message"]))
                yield event

    def _whole(self, path: str) -> bytes:
        whole = bytearray()
        with contextlib.closing(self._lines("GET", path)) as lines:
            for line in lines:
                whole += line
                if len(whole) > _MAX_BYTES:
                    raise ValueError("too long")
        return bytes(whole)

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Generator[bytes]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        options: dict[str, Any] = {"context": self._ssl} if self._url.scheme == "https" else {}
        connection = kind(*self._address, timeout=self._timeout_s, **options)
        place = f"{self._url.scheme}://{self._url.netloc}"
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{self._path}{path}", content, self._headers)
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise _refusal(response.status, response.read(_MAX_BYTES))
                self.ignored = response.getheader("x-ignored-params", "").split(",")
                while line := response.readline(_MAX_BYTES):
                    if len(line) == _MAX_BYTES:
                        raise ValueError("too long")
                    yield line
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
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            raise ChatFailed(f"{self._url.netloc}: not the answer of an OpenAI server") from exc


def _checked[T](kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise TypeError(f"not a value of {kind}")
    return value


def _sentence(news: bytes) -> str:
    text = news.removeprefix(_NEWS).decode("utf-8", "replace").strip()
    return f"{text[:1].upper()}{text[1:]}."


def _printable(name: object) -> str:
    """Return the name of a model, which goes into variables and command lines."""
    if not _checked(str, name).isprintable():
        raise ValueError("not a name")
    return _checked(str, name)


def is_url(text: str) -> bool:
    """Whether a text is the URL of a server, and not the name of a model, such as its page of the hub."""
    return _SERVER.fullmatch(text) is not None


def _refusal(status: int, content: bytes) -> ChatFailed:
    """Return the failure that an answer with another status than 200 tells."""
    try:
        error = json.loads(content)["error"]
        key = " (`conch` takes it from OPENAI_API_KEY)" if status == http.client.UNAUTHORIZED else ""
        return ChatFailed(f"{error['message']}{key}", str(error.get("code") or ""))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ChatFailed(f"HTTP status {status}, and not from an OpenAI server: is this its URL?")


def chosen(model: str, models: Collection[str]) -> str:
    """Return a model of a server: the named one, or without a name the first.

    Raises:
        ChatFailed: the server does not have it.
    """
    if model and model not in models:
        raise ChatFailed(f"{model=}: {expected_one_of(model, models)}")
    return model or next(iter(models))
