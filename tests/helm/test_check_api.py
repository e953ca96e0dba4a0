"""The script of `helm test`, with answers of a stand-in for the API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from helm.files.check_api import CheckFailed, check

CHAT = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}
EMBEDDING = {"data": [{"embedding": [0.6, 0.8]}]}
SCORES = {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]}
TASKS = {"demo": "generate", "embedder": "embed", "reranker": "score"}
EVENTS = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


class _Api(BaseHTTPRequestHandler):
    """Serves `demo`; other models answer as their names say."""

    events, embedding, scores = EVENTS, EMBEDDING, SCORES

    def do_GET(self) -> None:
        self._answer({"data": [{"id": model, "task": task} for model, task in TASKS.items()]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "resting":
            self._answer({}, 503, **{"Retry-After": "7"})
        elif self.path == "/v1/embeddings":
            self._answer(self.embedding)
        elif self.path == "/v1/rerank":
            self._answer(self.scores)
        else:
            self._answer(self.events if body.get("stream") else CHAT)

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Api)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_answers_and_another_may_be_scaled_to_zero(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(url, ["demo", "embedder", "reranker"], ["resting"])
    assert capsys.readouterr().out.splitlines() == [
        "ok: serves demo, embedder, reranker",
        "ok: demo answers 'Paris'",
        "ok: demo streams 1 events",
        "ok: embedder embeds in 2 dimensions",
        "ok: reranker scores 2 documents",
        "ok: resting is scaled to zero; retry in 7 s",
    ]


def test_a_missing_model_and_an_unfinished_stream_are_failures(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed, match="GET /v1/models: resting are missing in demo, embedder, reranker"):
        check(url, ["resting"], [])
    monkeypatch.setattr(_Api, "events", EVENTS.replace(b"[DONE]", b"{}"))
    with pytest.raises(CheckFailed, match="stream of demo"):
        check(url, ["demo"], [])
    monkeypatch.setattr(_Api, "embedding", {"data": [{"embedding": [0.0, 0.0]}]})
    with pytest.raises(CheckFailed, match="embedding by embedder: its length is not 1"):
        check(url, ["embedder"], [])
    monkeypatch.setattr(_Api, "scores", {"results": SCORES["results"][:1]})
    with pytest.raises(CheckFailed, match="scores of reranker"):
        check(url, ["reranker"], [])
