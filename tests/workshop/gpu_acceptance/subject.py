"""The model that the kit serves and checks, as a client sees it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

MAX_SEQUENCES = 8  # that the server decodes at the same time
_QUESTION = "Count from 1 to 9."


@dataclass(frozen=True, slots=True)
class Stream:
    """Times of one stream, in seconds since its request."""

    first_token_s: float
    last_token_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Subject:
    """The served model."""

    client: OpenAI
    model: str
    backend: str
    eos_token_ids: frozenset[int]
    context_window: int

    def post(self, path: str, **fields: Any) -> Any:
        """Return the answer of an endpoint."""
        return self.client.post(path, body={"model": self.model, **fields}, cast_to=object)

    def complete(self, **fields: Any) -> dict[str, Any]:
        """Return the first choice of a completion."""
        choice: dict[str, Any] = self.post("/completions", **fields)["choices"][0]
        return choice

    def complete_all(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the first choice of each of several completions that run at the same time."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda fields: self.complete(**fields), requests))

    def answer(self, **fields: Any) -> dict[str, Any]:
        """Return the answer to a question in the model's chat template, greedy by default."""
        return self.complete(**{"prompt": self.prompt(), "temperature": 0, "max_tokens": 100} | fields)

    def prompt(self) -> list[int]:
        """Return the token ids of the question."""
        ids: list[int] = self.post("/tokenize", messages=[{"role": "user", "content": _QUESTION}])["tokens"]
        return ids

    def stream(self, *, max_events: int = 1_000_000, **fields: Any) -> Stream:
        """Stream a completion, and hang up after `max_events`."""
        started, times, num_tokens = time.monotonic(), [0.0], 0
        body = fields | {"stream_options": {"include_usage": True}}
        prompt = body.pop("prompt")
        with self.client.completions.create(model=self.model, prompt=prompt, stream=True, extra_body=body) as events:
            for event in events:
                if event.usage:
                    num_tokens = event.usage.completion_tokens
                elif event.choices:
                    times.append(time.monotonic() - started)
                if len(times) > max_events:
                    break
        return Stream(times[1], times[-1], num_tokens)
