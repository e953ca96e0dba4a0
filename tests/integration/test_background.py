"""Answers in the background over the real Triton, when their frontend is killed in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai import OpenAI
from openai.types.responses import Response

from tests.integration.replicas import frontend_of
from tests.integration.stack import Stack
from tests.responses_types import checked_response_event

NUMBERS = {
    "type": "json_schema",
    "name": "numbers",
    "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 480, "maxItems": 480},
}
ASKED: dict[str, Any] = {"model": "demo", "input": "Count.", "temperature": 0, "max_output_tokens": 700}
# The client sees the first words long before the last ones are made.
SOON = ("frontend.handlers.answer_run:FLUSH_S=0.01", "frontend.handlers.answer_stream:POLL_S=0.01")


def missed(client: OpenAI, seen: list[Any]) -> list[Any]:
    """Return the events behind those that a client has."""
    return list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number))


def whole(client: OpenAI, seen: list[Any]) -> Response:
    """Check that a client has each event of an answer once, and return the answer."""
    again: list[Any] = list(client.responses.retrieve(seen[0].response.id, stream=True))
    found = client.responses.retrieve(seen[0].response.id)
    assert [event.to_dict() for event in seen] == [event.to_dict() for event in again]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    for event in seen:
        checked_response_event(event.to_dict())
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == found.output_text
    assert found.to_dict() == seen[-1].response.to_dict()
    return found


def test_the_text_goes_on_exactly_after_a_kill(stack: Stack, tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'store.db'}"
    asked = ASKED | {"text": {"format": NUMBERS}, "max_output_tokens": 1900}
    seen: list[Any] = []
    with (
        frontend_of([stack], tmp_path, store, constants=SOON) as frontend,
        OpenAI(base_url=f"{frontend.url}/v1", api_key="x") as client,
    ):
        expected = client.responses.create(**asked)
        begun: Any = client.responses.create(**asked, background=True, stream=True)
        for event in begun:
            seen.append(event)
            if event.type == "response.output_text.delta":
                frontend.process.kill()
                break
    with (
        frontend_of([stack], tmp_path, store) as frontend,
        OpenAI(base_url=f"{frontend.url}/v1", api_key="x") as client,
    ):
        seen += missed(client, seen)
        found = whole(client, seen)
        log = frontend.log_path.read_text()
    assert f"{found.id} goes on" in log
    assert found.usage is not None and expected.usage is not None
    assert (found.output_text, found.usage.output_tokens) == (expected.output_text, expected.usage.output_tokens)


def test_a_cancelled_answer_leaves_the_engine(stack: Stack, tmp_path: Path) -> None:
    with frontend_of([stack], tmp_path) as frontend, OpenAI(base_url=f"{frontend.url}/v1", api_key="x") as client:
        begun = client.responses.create(
            **ASKED | {"model": "synthetic/paced", "max_output_tokens": 3000}, background=True
        )
        with client.responses.stream(response_id=begun.id) as stream:
            next(event for event in stream if event.type == "response.output_text.delta")
            cancelled = client.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert cancelled.output_text
        stack.wait_until_idle("synthetic/paced")
