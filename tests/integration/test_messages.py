"""Anthropic's Messages API through its official client: text, streams, tools, stop sequences, refusals and counts."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.anthropic_types import checked_event, checked_message
from tests.integration.api import ANSWER, CHAT, COUNT_TOKENS, MESSAGES, QUESTION, WEATHER, Api
from tests.integration.stack import Stack

FUNCTION: Any = WEATHER["function"]
TOOL: Any = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
CITY_QUESTION = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def claude(stack: Stack) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client; it never tries again by itself."""
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def body_of(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": question}]} | fields


def greedy(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """Return arguments of the client: it has no field `temperature`."""
    return body_of(question, **fields) | {"extra_body": {"temperature": 0}}


def create(claude: anthropic.Anthropic, question: str = QUESTION, **fields: Any) -> anthropic.types.Message:
    message: anthropic.types.Message = claude.messages.create(**greedy(question, **fields))
    return checked_message(message.to_dict())


def prompt_tokens(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_read_input_tokens)


def test_a_question_is_answered_whole_and_streamed(claude: anthropic.Anthropic, api: Api) -> None:
    whole = create(claude)
    assert [block.type for block in whole.content] == ["text"]
    assert (whole.content[0].text, whole.stop_reason, whole.role) == (ANSWER, "end_turn", "assistant")  # type: ignore[union-attr]
    events = [checked_event(event.to_dict()) for event in claude.messages.create(**greedy(stream=True))]
    kinds = [event.type for event in events]
    num_deltas = kinds.count("content_block_delta")
    assert num_deltas > 1
    expected = ["message_start", "content_block_start", *["content_block_delta"] * num_deltas]
    assert kinds == [*expected, "content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events[2 : 2 + num_deltas]) == ANSWER
    used = api.ask(CHAT).body["usage"]
    for usage in (whole.usage, events[-2].usage, events[0].message.usage):
        assert prompt_tokens(usage) == used["prompt_tokens"]
    assert whole.usage.output_tokens == events[-2].usage.output_tokens == used["completion_tokens"]


def test_a_tool_that_fits_is_called_and_its_result_answers(claude: anthropic.Anthropic) -> None:
    message = create(claude, CITY_QUESTION, tools=[TOOL])
    [call] = (block for block in message.content if block.type == "tool_use")
    assert (call.name, call.input, message.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
    with claude.messages.stream(**greedy(CITY_QUESTION, tools=[TOOL])) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() | {"id": ""} for block in streamed.content] == [
        block.to_dict() | {"id": ""} for block in message.content
    ]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
    messages = [
        {"role": "user", "content": CITY_QUESTION},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = create(claude, tools=[TOOL], messages=messages)
    [text] = (block.text for block in answer.content if block.type == "text")
    assert "21" in text and "sunny" in text
    assert claude.messages.count_tokens(model="demo", messages=messages, tools=[TOOL]).input_tokens == (  # type: ignore[arg-type]
        prompt_tokens(answer.usage)
    )


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_come_does(claude: anthropic.Anthropic, choice: Any) -> None:
    choice |= {"disable_parallel_tool_use": True}
    message = create(claude, "Who won the election?", tools=[TOOL], tool_choice=choice, max_tokens=400)
    assert [block.type for block in message.content] == ["tool_use"]
    assert message.stop_reason == "tool_use"


def test_an_answer_ends_at_a_stop_sequence_or_by_length(claude: anthropic.Anthropic) -> None:
    stopped = create(claude, stop_sequences=["never", ", 5"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", 5")
    assert stopped.content[0].to_dict()["text"] == ANSWER.partition(", 5")[0]
    cut = create(claude, max_tokens=3)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_the_last_message_of_the_assistant_is_continued(claude: anthropic.Anthropic) -> None:
    begun = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER[:7]}]
    assert create(claude, messages=begun).content[0].to_dict()["text"] == ANSWER[7:]


def test_bad_input_is_refused_by_place_and_rule(claude: anthropic.Anthropic, api: Api) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.text: required") as caught:
        create(claude, messages=[{"role": "user", "content": [{"type": "text"}]}])
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError, match="no-model"):
        create(claude, model="no-model")
    with pytest.raises(anthropic.BadRequestError, match="context"):
        create(claude, "a " * 20_000)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[1\]\.source\.data: not base64"):
        create(claude, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, image]}])
    for path in (MESSAGES, COUNT_TOKENS):
        refused = api.post(path, {"model": "demo"})
        assert (refused.status, refused.error["type"]) == (400, "invalid_request_error")
        assert refused.headers["x-should-retry"] == "false"


def test_parts_without_effect_are_listed(api: Api) -> None:
    text = {"type": "text", "text": QUESTION}
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    answer = api.post(MESSAGES, body_of(messages=[{"role": "user", "content": [text]}], tools=[search], temperature=0))
    assert answer.body["content"] == [{"type": "text", "text": ANSWER}]
    assert answer.headers["x-ignored-params"] == "tools[0]"


def test_the_billing_header_of_claude_code_leaves_the_prefix_as_it_is(api: Api) -> None:
    """It made each prompt begin differently, so that no KV cache was reused."""
    text = {"type": "text", "text": "Be nice. " * 60}
    num_cached = []
    for nonce in ("eb6c6", "0a1b2c"):
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"}
        num_cached.append(api.post(MESSAGES, body_of(system=[header, text])).body["usage"]["cache_read_input_tokens"])
    assert num_cached[0] < 60 < num_cached[1]


def test_the_server_says_that_it_is_there(stack: Stack) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{stack.url}/", method="HEAD"), timeout=60) as answer:
        assert answer.status == 200
