"""The HTTP API as a client without a library sees it: bodies out, status and JSON or events in."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_TIMEOUT_S = 120.0  # only a hang reaches it

# The same question for both endpoints: the demo model's chat template, written out.
QUESTION = "Count from 1 to 9."
ANSWER = "1, 2, 3, 4, 5, 6, 7, 8, 9."

# A tool that the demo model knows how to call.
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat_text(question: str) -> str:
    """Return what the demo model's chat template makes of a question."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice."""
        assert self.status == 200, self.body
        choice: dict[str, Any] = self.body["choices"][0]
        return choice

    @property
    def text(self) -> str:
        """The first choice's text."""
        return text_of(self.choice)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the envelope."""
        assert self.status != 200, self.body
        error: dict[str, Any] = self.body["error"]
        return error


def text_of(choice: dict[str, Any]) -> str:
    """Return the text of a choice of either endpoint."""
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


@dataclass(frozen=True, slots=True)
class Api:
    """A client of one server."""

    url: str

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        """Send a body, as it is if it is bytes."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=payload, headers={"Content-Type": "application/json"} | (headers or {})
        )
        return _send(request)

    def get(self, path: str) -> Answer:
        """Fetch a document."""
        return _send(urllib.request.Request(self.url + path))

    def ask(self, endpoint: str, question: str = QUESTION, /, **fields: Any) -> Answer:
        """Ask the demo model a question, greedily unless the fields say otherwise."""
        return self.post(endpoint, question_body(endpoint, question) | fields)

    def events(self, endpoint: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Stream an answer and return its events; the last one must be [DONE]."""
        request = urllib.request.Request(
            self.url + endpoint,
            data=json.dumps(body | {"stream": True}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = response.read().decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def question_body(endpoint: str, question: str = QUESTION) -> dict[str, Any]:
    """Return a body that asks the demo model a question, greedily."""
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": question}]} if endpoint == CHAT else {"prompt": chat_text(question)}
    )
    return {"model": "demo", "temperature": 0, "max_tokens": 200} | asked


def _send(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return Answer(response.status, _json(response.read()), dict(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _json(error.read()), dict(error.headers))


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode("utf-8", "replace")
