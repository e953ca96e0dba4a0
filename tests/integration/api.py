"""The HTTP API as a client without a library sees it: bodies out, status and JSON or events in."""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.waiting import DEADLINE_S

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
RERANK, SCORE, CLASSIFY = "/v1/rerank", "/v1/score", "/v1/classify"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
RESPONSES = "/v1/responses"
INPUT_TOKENS = f"{RESPONSES}/input_tokens"

# Fields with an effect on a queue or on memory only: tests of the handlers look at the requests to Triton.
QUEUE_FIELDS = frozenset({"service_tier", "priority", "keep_alive", "ttl"})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known beforehand of the model that is asked."""

    model: str
    alias: str  # a further name of it
    prompt: str | list[int] | None  # of QUESTION, as a completion's; None: the demo model's template makes it
    prompt_text: str  # as it is echoed: of a prompt of token ids, special tokens have none
    answer: str  # greedily
    end_token: int
    end_text: str


DEMO = Subject(
    model="demo",
    alias="llama3.1:8b",
    prompt=None,
    prompt_text=chat_text(QUESTION),
    answer=ANSWER,
    end_token=3056,
    end_text="<|im_end|>",
)


@dataclass(frozen=True, slots=True)
class Api:
    """A client of one server."""

    url: str
    subject: Subject = DEMO  # of the questions that name no model

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
        """Ask the subject a question, greedily unless the fields say otherwise."""
        return self.post(endpoint, self.question_body(endpoint, question) | fields)

    def question_body(self, endpoint: str, question: str = QUESTION) -> dict[str, Any]:
        """Return a body that asks the subject a question, greedily."""
        body = question_body(endpoint, question) | {"model": self.subject.model}
        if endpoint == COMPLETIONS and self.subject.prompt is not None:
            body["prompt"] = self.subject.prompt if question == QUESTION else self.prompt_token_ids(question)
        return body

    def prompt_token_ids(self, question: str) -> list[int]:
        """Return what the subject's chat template makes of a question."""
        body = {"model": self.subject.model, "messages": [{"role": "user", "content": question}]}
        ids: list[int] = self.post("/tokenize", body).body["tokens"]
        return ids

    def text_of_tokens(self, token_ids: list[int]) -> str:
        """Return the text of tokens, special ones too."""
        return str(self.post("/detokenize", {"model": self.subject.model, "tokens": token_ids}).body["prompt"])

    def events(self, endpoint: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Stream an answer and return its events; [DONE] must end it where OpenAI's API has it."""
        data = [line.removeprefix("data: ") for line in self.lines(endpoint, body) if line.startswith("data: ")]
        if endpoint in (CHAT, COMPLETIONS):
            assert data.pop() == "[DONE]"
        return [json.loads(each) for each in data]

    def lines(self, endpoint: str, body: dict[str, Any]) -> list[str]:
        """Stream an answer and return its lines, comments too."""
        request = urllib.request.Request(
            self.url + endpoint,
            data=json.dumps(body | {"stream": True}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            return response.read().decode().splitlines()


def question_body(endpoint: str, question: str = QUESTION) -> dict[str, Any]:
    """Return a body that asks the demo model a question, greedily."""
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": question}]} if endpoint == CHAT else {"prompt": chat_text(question)}
    )
    return {"model": "demo", "temperature": 0, "max_tokens": 200} | asked


def api_of(url: str, model: str, alias: str) -> Api:
    """Return a client of a server that was started elsewhere, with what its model says when it is asked."""
    plain = Api(url, dataclasses.replace(DEMO, model=model, alias=alias))
    prompt = plain.prompt_token_ids(QUESTION)
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 200, "return_token_ids": True}
    choice = plain.post(COMPLETIONS, body).choice
    assert choice["finish_reason"] == "stop", f"{model} does not end its answer within 200 tokens: {choice['text']}"
    end_token = choice["token_ids"][-1]
    subject = Subject(
        model=model,
        alias=alias,
        prompt=prompt,
        prompt_text=plain.post(COMPLETIONS, body | {"echo": True, "max_tokens": 0}).text,
        answer=choice["text"],
        end_token=end_token,
        end_text=plain.text_of_tokens([end_token]),
    )
    return Api(url, subject)


def _send(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return Answer(response.status, _json(response.read()), dict(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _json(error.read()), dict(error.headers))


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode("utf-8", "replace")
