"""OpenAI's Responses through its official client: text, streams, tools, forms, refusals and counts."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pydantic
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.integration.api import ANSWER, CHAT, MESSAGES, QUESTION, RESPONSES, WEATHER, Api
from tests.responses_types import checked_response, checked_response_event

FUNCTION: Any = WEATHER["function"]
TOOL: Any = {"type": "function", **FUNCTION}
CITY_QUESTION = "What is the weather in Paris?"
RESULT = '{"temperature": 21, "condition": "sunny"}'


def asked(question: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    """Return arguments of the client."""
    return {"model": "demo", "input": question, "temperature": 0} | fields


def create(client: OpenAI, question: Any = QUESTION, **fields: Any) -> Response:
    response: Response = client.responses.create(**asked(question, **fields))
    return checked_response(response.to_dict(mode="json") | {"created_at": 0, "completed_at": 0})


def test_a_question_is_answered_whole_and_streamed(client: OpenAI, api: Api) -> None:
    whole = create(client, instructions=None)
    assert (whole.output_text, whole.status) == (ANSWER, "completed")
    events: list[Any] = [
        checked_response_event(json.loads(event.to_json())) for event in client.responses.create(**asked(stream=True))
    ]
    kinds = [event.type for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert num_deltas > 1
    expected = ["created", "in_progress", "output_item.added", "content_part.added"]
    expected += ["output_text.delta"] * num_deltas
    expected += ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds == [f"response.{name}" for name in expected]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4 : 4 + num_deltas]) == ANSWER
    used = api.ask(CHAT).body["usage"]
    usages: list[Any] = [whole.usage, events[-1].response.usage]
    for usage in usages:
        assert (usage.input_tokens, usage.output_tokens) == (used["prompt_tokens"], used["completion_tokens"])


def test_a_tool_that_fits_is_called_and_its_result_answers(client: OpenAI) -> None:
    response = create(client, CITY_QUESTION, tools=[TOOL])
    [call] = (item for item in response.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Paris"}, "completed")
    with client.responses.stream(**asked(CITY_QUESTION, tools=[TOOL])) as stream:
        streamed = stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in response.output]
    assert streamed.output[-1].arguments == call.arguments  # type: ignore[union-attr]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    items: list[Any] = [{"role": "user", "content": CITY_QUESTION}, *response.output, result]
    answer = create(client, items, tools=[TOOL])
    assert "21" in answer.output_text and "sunny" in answer.output_text
    assert answer.usage is not None
    counted = client.responses.input_tokens.count(model="demo", input=items, tools=[TOOL])
    assert counted.input_tokens == answer.usage.input_tokens


def test_one_conversation_is_the_same_prompt_for_each_api(api: Api) -> None:
    arguments = {"city": "Paris"}
    chat = [
        {"role": "system", "content": "Be nice."},
        {"role": "user", "content": CITY_QUESTION},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments)}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": RESULT},
    ]
    items = [
        {"role": "user", "content": CITY_QUESTION},
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": json.dumps(arguments)},
        {"type": "function_call_output", "call_id": "c", "output": RESULT},
    ]
    use = {"type": "tool_use", "id": "c", "name": "get_weather", "input": arguments}
    blocks = [
        {"role": "user", "content": CITY_QUESTION},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": RESULT}]},
    ]
    claude_tool = {
        "name": "get_weather",
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
    body = {"model": "demo", "temperature": 0}
    of_chat = api.post(CHAT, body | {"messages": chat, "tools": [WEATHER]}).body
    of_responses = api.post(RESPONSES, body | {"instructions": "Be nice.", "input": items, "tools": [TOOL]}).body
    of_messages = api.post(
        MESSAGES, body | {"max_tokens": 200, "system": "Be nice.", "messages": blocks, "tools": [claude_tool]}
    ).body
    usage = of_messages["usage"]
    num_tokens = of_chat["usage"]["prompt_tokens"]
    assert of_responses["usage"]["input_tokens"] == num_tokens
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_tokens
    answer = of_chat["choices"][0]["message"]["content"]
    assert of_responses["output"][0]["content"][0]["text"] == of_messages["content"][0]["text"] == answer


def test_a_custom_tool_gets_a_text_of_its_grammar(client: OpenAI) -> None:
    """The shape of the grammar with which Codex edits files."""
    grammar = """
        start: "*** Begin" LF line~9..12 "*** End" LF?
        line: ("+" | "-") /[a-c]{1,2}/ LF
        %import common.LF
    """
    tool: Any = {
        "type": "custom",
        "name": "edit",
        "format": {"type": "grammar", "syntax": "lark", "definition": grammar},
    }
    choice = {"type": "custom", "name": "edit"}
    response = create(client, "Edit it.", tools=[tool], tool_choice=choice, max_output_tokens=400)
    [call] = response.output
    assert call.type == "custom_tool_call" and response.status == "completed"
    assert re.fullmatch(r"\*\*\* Begin\n([+-][a-c]{1,2}\n){9,12}\*\*\* End\n?", call.input)
    events: list[Any] = list(
        client.responses.create(
            **asked("Edit it.", tools=[tool], tool_choice=choice, max_output_tokens=400, stream=True)
        )
    )
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == call.input and len(pieces) > 1
    items: list[Any] = [{"role": "user", "content": "Edit it."}, call]
    items.append({"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."})
    assert create(client, items, tools=[tool]).status == "completed"


class Sum(pydantic.BaseModel):
    """A form for an answer."""

    total: int


def test_a_form_is_enforced(client: OpenAI) -> None:
    response = client.responses.parse(**asked("What is 2 + 3?", text_format=Sum))
    assert isinstance(response.output_parsed, Sum)


def test_log_probabilities_are_those_of_the_chat(client: OpenAI, api: Api) -> None:
    response = create(client, include=["message.output_text.logprobs"], top_logprobs=2)
    [message] = response.output
    assert message.type == "message" and message.content[0].type == "output_text"
    found: Any = [each.to_dict() for each in message.content[0].logprobs or ()]
    expected = api.ask(CHAT, logprobs=True, top_logprobs=2).choice["logprobs"]["content"]
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip([ours, *ours["top_logprobs"]], [theirs, *theirs["top_logprobs"]], strict=True):
            assert (one["token"], one["bytes"]) == (other["token"], other["bytes"])
            # The second prompt is in the KV cache. Its last token is computed alone, and not beside the others.
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-5)


def test_an_answer_that_the_limit_cuts_is_incomplete(client: OpenAI) -> None:
    response = create(client, max_output_tokens=3)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"


def test_truncation_leaves_out_the_oldest_turns(client: OpenAI) -> None:
    turns: list[Any] = [{"role": role, "content": "Yes. " * 60} for _ in range(60) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": QUESTION})
    with pytest.raises(openai.BadRequestError, match="context length") as caught:
        create(client, turns)
    assert caught.value.code == "context_length_exceeded"
    response = create(client, turns, truncation="auto", max_output_tokens=50)
    assert response.usage is not None and response.usage.input_tokens > 500


def test_bad_input_is_refused_by_place_and_rule(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.content\[0\]\.text: required"):
        create(client, [{"role": "user", "content": [{"type": "input_text"}]}])
    image = {"type": "input_image", "image_url": "data:image/png;base64,?"}
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.content\[0\]\.image_url: not base64"):
        create(client, [{"role": "user", "content": [image]}])


def test_parts_without_effect_are_listed(api: Api) -> None:
    body = asked(tools=[{"type": "web_search"}], store=True, text={"verbosity": "low"})
    answer = api.post(RESPONSES, body)
    assert (answer.body["store"], answer.body["tools"]) == (True, [])
    assert answer.headers["x-ignored-params"] == "tools[0],text.verbosity"
