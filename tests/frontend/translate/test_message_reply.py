"""Answers in Anthropic's form: the order of events, whole and streamed alike, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from frontend import errors
from frontend.errors import APIError
from frontend.translate.message_reply import MessageReply, message_error, message_error_head
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk, Usage
from model_repository.tool_formats import HERMES
from tests.anthropic_types import checked_event, checked_message
from tests.fakes import served_model
from tests.frontend.bodies import WEATHER, chat
from tests.frontend.translate.test_chat_reasoning import chunks_of

NAME = ModelName(requested="r", model=served_model(reasoning_format="think"))
CALL = HERMES.calls_text([("get_weather", '{"city": "Zürich"}')])


def reply_to(**fields: Any) -> MessageReply:
    return MessageReply(chat(**fields), NAME, "req_1")


def put_together(reply: MessageReply, chunks: Sequence[GenerationChunk]) -> tuple[list[Any], dict[str, Any]]:
    """Return the blocks of a stream as a client adds them up, and how it ended. Events are in Anthropic's order."""
    events = [
        *reply.opening(GenerationChunk(text="")),
        *(event for chunk in chunks for event in reply.events(0, chunk)),
    ]
    for event in events:
        checked_event(event)
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    blocks: list[Any] = []
    is_open = False
    for event in events[2:-2]:
        assert event["index"] == len(blocks) - is_open
        match event["type"]:
            case "content_block_start":
                assert not is_open
                blocks.append(dict(event["content_block"]))
                is_open = True
            case "content_block_delta":
                assert is_open
                [key] = event["delta"].keys() - {"type"}
                blocks[-1][key] = blocks[-1].get(key, "") + event["delta"][key]
            case "content_block_stop":
                assert is_open
                is_open = False
    assert not is_open
    return blocks, dict(events[-2])


def shown(blocks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the blocks without their random ids."""
    return [(block["type"], block.get("text", block.get("thinking", block.get("name")))) for block in blocks]


@given(
    thinking=st.sampled_from(["", "<think>\nHm. </think>", "<think>"]),
    answer=st.lists(st.sampled_from(["Hi", " there", "\n", CALL, CALL[:20], "<"]), max_size=4).map("".join),
    places=st.sets(st.integers(1, 150), max_size=9),
    reason=st.sampled_from(FinishReason),
    has_tools=st.booleans(),
)
def test_a_stream_adds_up_to_the_whole_answer(
    thinking: str, answer: str, places: set[int], reason: FinishReason, has_tools: bool
) -> None:
    fields = {"tools": [WEATHER]} if has_tools else {}
    [chunk] = chunks_of(thinking, answer, set(), reason)
    whole = checked_message(reply_to(**fields).whole([chunk])).to_dict()
    blocks, end = put_together(reply_to(**fields), chunks_of(thinking, answer, places, reason))
    assert shown(blocks) == shown(whole["content"])  # type: ignore[arg-type]
    assert (end["delta"]["stop_reason"], end["usage"]) == (whole["stop_reason"], whole["usage"])
    assert all(block["signature"] for block in blocks if block["type"] == "thinking")


def answered(
    text: str, reason: FinishReason = FinishReason.STOP, stop: str | int | None = None, **fields: Any
) -> Message:
    usage = Usage(num_input_tokens=7, num_output_tokens=5, num_cached_tokens=3, num_reasoning_tokens=2)
    chunk = GenerationChunk(text=text, finish_reason=reason, stop_reason=stop, usage=usage)
    return checked_message(reply_to(**fields).whole([chunk]))


@pytest.mark.parametrize(
    ("answer", "stop_reason", "stop_sequence"),
    [
        (answered("a"), "end_turn", None),
        (answered("a", stop=11), "end_turn", None),
        (answered("a", stop="b"), "stop_sequence", "b"),
        (answered("a", FinishReason.LENGTH), "max_tokens", None),
        (answered(CALL, tools=[WEATHER]), "tool_use", None),
        (answered(CALL, tools=[WEATHER], tool_choice="required"), "tool_use", None),
        (answered(CALL[:50], FinishReason.LENGTH, tools=[WEATHER]), "max_tokens", None),
    ],
)
def test_the_stop_reason_is_anthropics(answer: Message, stop_reason: str, stop_sequence: str | None) -> None:
    assert (answer.stop_reason, answer.stop_sequence) == (stop_reason, stop_sequence)


def test_input_tokens_are_without_those_of_the_cache() -> None:
    usage = answered("a").usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 3, 5)
    assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens == 2


def test_a_call_has_its_arguments_as_an_object_and_a_cut_one_has_none() -> None:
    [call] = answered(CALL, tools=[WEATHER]).content
    assert call.type == "tool_use" and (call.name, call.input) == ("get_weather", {"city": "Zürich"})
    [cut] = answered(CALL[:50], FinishReason.LENGTH, tools=[WEATHER]).content
    assert cut.type == "tool_use" and (cut.name, cut.input) == ("get_weather", {})


def test_the_text_of_a_call_that_must_come_and_was_cut_is_no_content() -> None:
    assert answered(CALL[:9], FinishReason.LENGTH, tools=[WEATHER], tool_choice="required").content == []


@pytest.mark.parametrize(
    ("error", "kind", "status", "is_retried"),
    [
        (errors.InvalidRequest("a"), "invalid_request_error", 400, False),
        (errors.AuthenticationFailed("a"), "authentication_error", 401, False),
        (errors.PermissionDenied("a"), "permission_error", 403, False),
        (errors.ModelNotFound("a"), "not_found_error", 404, False),
        (errors.MethodNotAllowed("a", {"POST"}), "invalid_request_error", 405, False),
        (errors.RequestTooLarge("a"), "request_too_large", 413, False),
        (errors.RateLimited("a", headers=errors.retry_headers(2)), "rate_limit_error", 429, True),
        (errors.RateLimited("a", headers=errors.retry_headers(None)), "rate_limit_error", 429, False),
        (errors.EngineFailed(), "api_error", 500, True),
        (errors.QueueFull("a"), "overloaded_error", 529, True),
        (errors.GenerationTimeout("a"), "timeout_error", 504, True),
    ],
)
def test_an_error_has_anthropics_form(error: APIError, kind: str, status: int, is_retried: bool) -> None:
    body = message_error(error, "req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": "req_1"}
    found, headers = message_error_head(error, "req_1")
    assert (found, headers["x-should-retry"], headers["request-id"]) == (status, str(is_retried).lower(), "req_1")
    assert error.headers.items() <= headers.items()
