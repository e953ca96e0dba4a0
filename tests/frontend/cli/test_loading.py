"""The commands `ps`, `load` and `unload`, with a server that is played."""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from frontend.cli.chat_client import ChatClient, ChatFailed
from frontend.cli.loading import load, print_servers, unload
from model_repository.system.running_servers import RunningServer

SERVER = RunningServer(7, True, "http://127.0.0.1:8000", Path("/home/servers/8000"), ("demo",), ())


def card(name: str, value: str, task: str = "generate", **facts: Any) -> dict[str, Any]:
    status = {"value": value, "memory_bytes": 1_300_000_000, **facts}
    return {"id": name, "root": name, "task": task, "max_model_len": 2048, "status": status}


class Server(ChatClient):
    """Has these models, answers each request with these lines, and unloads a model that is to leave."""

    def __init__(self, *cards: dict[str, Any], lines: list[bytes] | None = None, ignored: str = "") -> None:
        super().__init__("http://server")
        self.all_cards, self.lines, self.sent = cards, lines or [], list[tuple[str, dict[str, Any]]]()
        self.will_ignore = ignored

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Generator[bytes]:
        if body is None:
            yield json.dumps({"data": self.all_cards}).encode()
            return
        self.sent.append((path, body))
        self.ignored = [self.will_ignore]
        yield from self.lines
        if body.get("keep_alive") == 0 and not self.will_ignore:
            for each in self.all_cards:
                each["status"]["value"] = "unloaded"


def test_a_server_is_listed_with_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        card("demo", "loaded", idle_s=12.4, expires_s=287.0),
        card("big", "loading", progress=0.4, device_bytes={"CUDA0": 3_100_000_000}),
        card("bad", "failed", cause="no such file"),
    ]
    cards.append({**card("alias", "loaded"), "root": "demo"})
    monkeypatch.setattr("frontend.cli.loading.ChatClient", lambda *_, **__: Server(*cards))
    out = io.StringIO()
    print_servers([SERVER], "", out)
    first, *models = out.getvalue().splitlines()
    assert first.split() == ["7", "http://127.0.0.1:8000", "demo", "/home/servers/8000"]
    assert [" ".join(line.split()) for line in models] == [
        "demo loaded 1.3 GB 2,048 tokens idle for 12 s leaves in 5 min",
        "big loading 40% 1.3 GB + 3.1 GB on CUDA0 2,048 tokens",
        "bad failed 1.3 GB 2,048 tokens no such file",
    ]


def test_a_server_that_does_not_answer_is_listed_too() -> None:
    out = io.StringIO()
    print_servers([RunningServer(7, True, "http://127.0.0.1:1", Path("/home"), ("demo",), ())], "", out)
    assert out.getvalue().split() == ["7", "http://127.0.0.1:1", "demo", "/home"]


def test_a_load_tells_why_it_waits() -> None:
    lines = [b": keepalive: the model is second in line\n", b": keepalive: the model is loading\n", b"data: [DONE]\n"]
    server, err = Server(card("demo", "unloaded"), lines=lines), io.StringIO()
    load(server, "demo", err)
    assert err.getvalue() == "The model is second in line.\nThe model is loading.\n"
    [(path, body)] = server.sent
    assert (path, body["model"]) == ("/v1/completions", "demo")


def test_a_load_that_fails_behind_a_comment_is_a_failure() -> None:
    lines = [b": keepalive\n", b'data: {"error": {"message": "it does not load: no such file"}}\n']
    with pytest.raises(ChatFailed, match=r"^it does not load: no such file$"):
        load(Server(card("demo", "unloaded"), lines=lines), "demo", io.StringIO())


@pytest.mark.parametrize(("task", "path"), [("embed", "/v1/embeddings"), ("score", "/v1/rerank")])
def test_a_model_of_any_task_is_unloaded_by_a_request_after_which_it_does_not_stay(task: str, path: str) -> None:
    server = Server(card("demo", "loaded", task))
    unload(server, "demo")
    assert [(sent, body["keep_alive"]) for sent, body in server.sent] == [(path, 0)]


def test_a_model_that_is_not_loaded_is_not_loaded_to_be_unloaded() -> None:
    server = Server(card("demo", "unloaded"))
    unload(server, "demo")
    assert server.sent == []


def test_a_model_that_stays_is_a_failure_with_the_reason() -> None:
    with pytest.raises(ChatFailed, match="the API key may not unload models"):
        unload(Server(card("demo", "loaded"), ignored="keep_alive"), "demo")
    server = Server(card("demo", "loaded"))
    server.will_ignore = "other"  # others use it
    with pytest.raises(ChatFailed, match="others use it"):
        unload(server, "demo", sleep=lambda seconds: None)


def test_a_model_that_the_server_does_not_have_is_named() -> None:
    with pytest.raises(ChatFailed, match="model='demi'"):
        load(Server(card("demo", "loaded")), "demi", io.StringIO())
