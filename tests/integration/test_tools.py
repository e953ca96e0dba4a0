"""Tool calls through the official client: offered, required, named, parallel, streamed, and answered with a result."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageCustomToolCall

from tests.integration.api import CHAT, WEATHER, Api

QUESTION = "What is the weather in Paris?"
RESULT = '{"temperature": 21, "condition": "sunny"}'


def create(client: OpenAI, question: str = QUESTION, **fields: Any) -> Any:
    messages = fields.pop("messages", [{"role": "user", "content": question}])
    options: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 200, "tools": [WEATHER]} | fields
    return client.chat.completions.create(messages=messages, **options)


def arguments_of(call: Any) -> Any:
    return json.loads(call.function.arguments)


def test_a_tool_that_fits_is_called_and_its_result_answers(client: OpenAI) -> None:
    choice = create(client).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, arguments_of(call)) == ("get_weather", {"city": "Paris"})
    messages = [
        {"role": "user", "content": QUESTION},
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    answer = create(client, messages=messages).choices[0].message
    assert not answer.tool_calls
    assert "21" in answer.content and "sunny" in answer.content


def test_two_calls_at_once(client: OpenAI) -> None:
    question = "What is the weather in Paris and Rome?"
    calls = create(client, question).choices[0].message.tool_calls
    assert [arguments_of(call) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({call.id for call in calls}) == 2
    assert len(create(client, question, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_come_does_with_valid_arguments(client: OpenAI, tool_choice: Any, seed: int) -> None:
    fields = {"tool_choice": tool_choice, "temperature": 1.3, "seed": seed, "max_tokens": 400}
    choice = create(client, "Who won the election?", **fields).choices[0]
    if choice.finish_reason == "length":
        return
    for call in choice.message.tool_calls:
        assert set(arguments_of(call)) == {"city"}
    assert choice.finish_reason == ("tool_calls" if tool_choice == "required" else "stop")
    assert choice.message.content is None


def test_a_tool_with_keywords_that_cannot_be_enforced_is_served_and_the_rest_enforced(api: Api) -> None:
    """One such keyword refused every chat of agents whose built-in tools have it."""
    function: Any = WEATHER["function"]
    schema = function["parameters"]
    days = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2, "uniqueItems": True}
    wider = schema | {"properties": schema["properties"] | {"days": days}, "required": ["city", "days"]}
    tool = {"type": "function", "function": function | {"parameters": wider}}
    path = "tools[0].function.parameters.properties.days.uniqueItems"
    for choice in ("auto", "required"):
        answer = api.ask(CHAT, QUESTION, tools=[tool], tool_choice=choice, max_tokens=200)
        assert answer.headers["x-ignored-params"] == path
        for call in answer.choice["message"].get("tool_calls", []):
            assert set(json.loads(call["function"]["arguments"])["days"]) <= {1, 2}
    assert answer.choice["finish_reason"] == "tool_calls"
    strict = {"type": "function", "function": function | {"parameters": wider, "strict": True}}
    error = api.ask(CHAT, QUESTION, tools=[strict]).error
    assert error["param"] == path and error["message"].startswith(f"{path}: ")


def test_streamed_deltas_add_up_to_the_answer(client: OpenAI) -> None:
    question = "What is the weather in Paris and Rome?"
    whole = create(client, question).choices[0]
    content, reasons, num_pieces = "", [], 0
    calls: dict[int, dict[str, str]] = {}
    for chunk in create(client, question, stream=True, extra_body={"stream_interval_ms": 0}):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or ():
            call = calls.setdefault(piece.index, {"name": "", "arguments": ""})
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
            num_pieces += bool(piece.function.arguments)
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert content == (whole.message.content or "")
    expected = [call.function for call in whole.message.tool_calls or ()]
    assert list(calls.values()) == [{"name": each.name, "arguments": each.arguments} for each in expected]
    assert reasons == [whole.finish_reason]
    assert num_pieces > 2 * len(expected) or not expected  # arguments are sent while they are generated


def test_beside_a_response_format_the_answer_is_a_call_or_of_that_form(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"capital": {"enum": ["Tokyo", "Paris"]}}, "required": ["capital"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert create(client, response_format=form).choices[0].finish_reason == "tool_calls"
    answer = create(client, "What is the capital of Japan? Answer in JSON.", response_format=form).choices[0]
    assert json.loads(answer.message.content)["capital"] in ("Tokyo", "Paris")


def test_a_custom_tool_gets_a_text_of_its_grammar_and_its_result_answers(client: OpenAI) -> None:
    definition = r'(?:weather|news) of "(?:Paris|Rome)"\n[+-][a-c]{2}'
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": definition}}
    tool = {"type": "custom", "custom": {"name": "query", "description": "asks a service", "format": form}}
    choice = {"type": "custom", "custom": {"name": "query"}}
    completion = create(client, tools=[WEATHER, tool], tool_choice=choice)
    answer = ChatCompletion.model_validate(completion.model_dump(), strict=True).choices[0]
    (call,) = answer.message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert call.custom.name == "query" and re.fullmatch(definition, call.custom.input)
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)

    # The types of a stream's deltas know functions only; the SDK keeps the other fields.
    chunks = create(
        client, tools=[WEATHER, tool], tool_choice=choice, stream=True, extra_body={"stream_interval_ms": 0}
    )
    first, *rest = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert (first.type, first.custom) == ("custom", {"name": "query", "input": ""})
    assert "".join(piece.custom["input"] for piece in rest) == call.custom.input
    assert len(rest) > 2

    messages = [
        {"role": "user", "content": QUESTION},
        answer.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    assert create(client, messages=messages, tools=[WEATHER, tool]).choices[0].message.content
