"""The client of chats in the terminal: the models that it talks to."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Piece

CHATS = {"id": "demo", "owned_by": "conch", "max_model_len": 64, "task": "generate"}
EMBEDS = {"id": "bge-m3", "owned_by": "conch", "max_model_len": 64, "task": "embed"}


class Server(ChatClient):
    """Has these models."""

    def __init__(self, *cards: dict[str, Any]) -> None:
        super().__init__("http://server")
        self._cards = cards

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Generator[bytes]:
        yield json.dumps({"data": self._cards}).encode()


def test_a_model_that_embeds_is_no_choice_for_a_chat() -> None:
    assert Server(EMBEDS, CHATS).models() == {"demo": 64}


@pytest.mark.parametrize(("cards", "model"), [([CHATS, EMBEDS], "bge-m3"), ([EMBEDS], "")])
def test_a_chat_with_a_model_that_embeds_is_refused_with_its_path(cards: list[dict[str, Any]], model: str) -> None:
    with pytest.raises(ChatFailed, match=r"^bge-m3 does not chat: its task is embed, at http://server/v1/embeddings$"):
        Server(*cards).models(model)


def test_a_server_that_names_no_tasks_has_models_that_chat() -> None:
    assert Server({"id": "other", "owned_by": "somebody"}).models() == {"other": 0}


def test_models_that_limit_an_answer_by_themselves_are_known() -> None:
    server = Server(CHATS, CHATS | {"id": "brief", "default_parameters": {"max_tokens": 20}})
    server.models()
    assert server.limited == {"brief"}


_DEEP = b"[" * 100_000
_NOT_OPENAI = r"^server: not the answer of an OpenAI server$"


@pytest.mark.parametrize("name", [None, 5, True, ["a"], {}, "a\0b", "\x1b[2J", "\ud800"], ids=ascii)
def test_a_name_is_a_printable_text(name: Any) -> None:
    """Variables and command lines of an agent took no other name, so `launch` ended with a traceback."""
    with pytest.raises(ChatFailed, match=_NOT_OPENAI):
        Server(CHATS | {"id": name}).models()


@pytest.mark.parametrize("length", [None, "64", 2.5, True, [1]], ids=ascii)
def test_a_context_window_is_a_whole_number(length: Any) -> None:
    with pytest.raises(ChatFailed, match=_NOT_OPENAI):
        Server(CHATS | {"max_model_len": length}).models()


def _chunk(**fields: Any) -> bytes:
    return json.dumps({"choices": [{"delta": {}, "finish_reason": None} | fields]}).encode()


@pytest.mark.parametrize(
    "event",
    [
        *(_DEEP, b"5", b'{"error": {"message": 5}}', b'{"choices": 5}', _chunk(delta=5), _chunk(delta={"content": 5})),
        *(_chunk(delta={"reasoning": ["a"]}), b'{"choices": [], "usage": {"completion_tokens": "5"}}', b"\0"),
    ],
    ids=lambda event: event[:60].decode(),
)
def test_an_event_of_another_form_is_a_failure(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(server, "_lines", lambda *_: iter([b"data: " + event, b"data: [DONE]"]))
    with pytest.raises(ChatFailed, match=_NOT_OPENAI):
        list(server.answer({}))


@contextmanager
def _endless(begin: bytes, part: bytes) -> Iterator[str]:
    """Serve answers without an end, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(begin)
            try:
                while True:
                    self.wfile.write(part * 4096)
            except OSError:  # the client has left
                pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "part"), [(200, b" "), (200, b" " * 99 + b"\n"), (500, b" ")])
def test_an_answer_without_an_end_is_a_failure(status: int, part: bytes) -> None:
    """It filled the memory."""
    with _endless(b"HTTP/1.0 %d A\r\n\r\n" % status, part) as url, pytest.raises(ChatFailed, match="OpenAI server"):
        ChatClient(url).models()


_USAGE = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
_TIMING = {"tokenize": 1.0, "queue": 2.0, "prefill": 3, "decode": 4.5}


@pytest.mark.parametrize(
    ("details", "options", "cached", "timing_ms"),
    [
        ({"cached_tokens": 5}, {"include_timing": True}, {"cached_tokens": 5}, {"prefill": 3.0, "decode": 4.5}),
        (None, {}, {}, {}),
        ({"cached_tokens": None}, {}, {}, {}),
    ],
)
def test_the_figures_of_an_answer_are_the_servers(
    details: Any, options: dict[str, bool], cached: dict[str, int], timing_ms: dict[str, float], monkeypatch: Any
) -> None:
    event: dict[str, Any] = {
        "choices": [],
        "usage": _USAGE | {"prompt_tokens_details": details},
        "timing": _TIMING if options else 5,
    }
    server = Server()
    monkeypatch.setattr(server, "_lines", lambda *_: iter([b"data: " + json.dumps(event).encode(), b"data: [DONE]"]))
    assert list(server.answer({"stream_options": options})) == []
    assert server.usage == {"prompt_tokens": 7, "completion_tokens": 11, **cached}
    assert server.timing_ms == timing_ms


def test_the_news_of_an_answer_that_waits_are_notes_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    second, loading = b": keepalive: the model is second in line\n", b": keepalive: the model is loading (40%)\n"
    lines = [b": keepalive\n", second, second, loading, b"data: " + _chunk(delta={"content": "x"}), b"data: [DONE]"]
    server = Server()
    monkeypatch.setattr(server, "_lines", lambda *_: iter(lines))
    notes = ["(The model is second in line.)", "(The model is loading (40%).)"]
    assert list(server.answer({})) == [*(Piece(note, Kind.NOTE) for note in notes), Piece("x")]
