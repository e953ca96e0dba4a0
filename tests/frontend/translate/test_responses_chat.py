"""A conversation in the items of Responses is the same prompt, with the same parameters, as the chat it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.errors import APIError
from frontend.protocol.responses import ResponsesRequest, sealed_thinking
from frontend.settings import Settings
from frontend.translate.places import Places
from frontend.translate.requests import chat_to_requests, ignored_fields
from frontend.translate.responses_chat import responses_to_chat
from frontend.triton.models import ModelName
from model_repository.contract.request import GenerationRequest
from tests.frontend.bodies import RESPONSE, read
from tests.frontend.translate.test_message_chat import PLAIN, PNG, THINKER, of_chat, only

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: dict[str, Any] = {"type": "function", "name": "f", "description": "does", "parameters": SCHEMA, "strict": True}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {key: value for key, value in TOOL.items() if key != "type"},
}
GRAMMAR: dict[str, Any] = {"syntax": "regex", "definition": "[a-z]+"}
CUSTOM_TOOL: dict[str, Any] = {
    "type": "custom",
    "name": "c",
    "description": "types",
    "format": {"type": "grammar", **GRAMMAR},
}
CUSTOM = {
    "type": "custom",
    "custom": {"name": "c", "description": "types", "format": {"type": "grammar", "grammar": GRAMMAR}},
}


def of_responses(name: ModelName = THINKER, **fields: Any) -> GenerationRequest:
    body = read(ResponsesRequest, RESPONSE | {"max_output_tokens": 9} | fields)[0]
    places = Places(body)
    try:
        return only(chat_to_requests(responses_to_chat(body, name, places), name, Settings().request_defaults))
    except APIError as exc:
        places.blame(exc)
        raise


# A part of a conversation in both forms.
type Pair = tuple[dict[str, Any], dict[str, Any]]

TEXTS = st.text(st.sampled_from("ab é\n<"), max_size=5)


def text_pair(text: str, kind: str = "input_text") -> Pair:
    return {"type": kind, "text": text}, {"type": "text", "text": text}


READ = TEXTS.map(text_pair) | st.just(
    ({"type": "input_image", "image_url": PNG, "detail": "auto"}, {"type": "image_url", "image_url": {"url": PNG}})
)
WRITTEN = TEXTS.map(lambda text: text_pair(text, "output_text")) | TEXTS.map(
    lambda text: ({"type": "refusal", "refusal": text}, {"type": "refusal", "refusal": text})
)
THOUGHTS = st.text(st.sampled_from("ab\n"), min_size=1, max_size=5)


@st.composite
def of_user(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a message of the user, and that of the chat."""
    if draw(st.booleans()):
        message = {"role": "user", "content": draw(TEXTS)}
        return [message | draw(st.sampled_from([{}, {"type": "message"}]))], [message]
    parts = draw(st.lists(READ, max_size=3))
    item = {"type": "message", "role": "user", "content": [each[0] for each in parts]}
    return [item], [{"role": "user", "content": [each[1] for each in parts]}]


@st.composite
def of_model(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the model wrote, with the results of its calls, and the messages of the chat."""
    items: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "assistant"}
    if draw(st.booleans()):
        message["reasoning_content"] = thought = draw(THOUGHTS)
        whole = [{"type": "reasoning_text", "text": thought}]
        form: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {"content": whole, "summary": [{"type": "summary_text", "text": "less"}]},
                    {"content": [], "summary": [{"type": "summary_text", "text": thought}], "encrypted_content": "x"},
                    {"encrypted_content": sealed_thinking(thought), "summary": []},
                ]
            )
        )
        items.append({"type": "reasoning", "id": "rs_1", "status": "completed", **form})
    if draw(st.booleans()):
        parts = draw(st.lists(WRITTEN, max_size=2))
        items.append({"type": "message", "role": "assistant", "content": [each[0] for each in parts], "id": "msg_1"})
        message["content"] = [each[1] for each in parts]
    results = []
    for number in range(draw(st.integers(0, 2))):
        call_id, result = f"call_{number}", draw(st.lists(READ, max_size=2))
        output = [each[0] for each in result]
        results.append(({"call_id": call_id, "output": output}, [each[1] for each in result]))
        if draw(st.booleans()):
            arguments = json.dumps({"a": number})
            items.append({"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments})
            results[-1][0]["type"] = "function_call_output"
            call: dict[str, Any] = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        else:
            items.append({"type": "custom_tool_call", "call_id": call_id, "name": "c", "input": "a\n"})
            results[-1][0]["type"] = "custom_tool_call_output"
            call = {"type": "custom", "custom": {"name": "c", "input": "a\n"}}
        message.setdefault("tool_calls", []).append({"id": call_id, **call})
    tools = [{"role": "tool", "tool_call_id": item["call_id"], "content": content} for item, content in results]
    return items + [item for item, _ in results], [message, *tools] if len(message) > 1 else []


@given(
    instructions=st.none() | TEXTS,
    system=st.lists(st.tuples(st.sampled_from(["system", "developer"]), TEXTS), max_size=2),
    turns=st.lists(st.tuples(of_user(), of_model()), min_size=1, max_size=3),
)
def test_a_conversation_is_the_prompt_of_its_chat(
    instructions: str | None, system: list[tuple[str, str]], turns: list[tuple[Any, Any]]
) -> None:
    items: list[Any] = [{"role": role, "content": text} for role, text in system]
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    messages += items
    for user, model in turns:
        items += user[0] + model[0]
        messages += user[1] + model[1]
    given_items = of_responses(instructions=instructions, input=items, tools=[TOOL, CUSTOM_TOOL])
    assert given_items == of_chat(messages=messages, tools=[FUNCTION, CUSTOM])


def of_assistant(*kinds: str) -> list[dict[str, Any]]:
    forms: dict[str, Any] = {
        "reasoning": {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
        "message": {"role": "assistant", "content": "Hi."},
        "function_call": {"call_id": "1", "name": "f", "arguments": "{}"},
    }
    return [{"type": kind, **forms[kind]} for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "num_messages"),
    [
        (("reasoning", "message", "function_call", "function_call"), 1),
        (("message", "message"), 2),
        (("message", "reasoning", "message"), 2),
        (("function_call", "message"), 1),
        (("reasoning", "reasoning"), 1),
    ],
)
def test_what_the_model_wrote_in_one_turn_is_one_message(kinds: tuple[str, ...], num_messages: int) -> None:
    prompt: Any = of_responses(input=[{"role": "user", "content": "hi"}, *of_assistant(*kinds)]).prompt
    assert len(prompt.messages) == 1 + num_messages


FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"max_output_tokens": 3}, {"max_tokens": 3}),
        ({"temperature": 0.5, "top_p": 0.1, "stream": True}, {"temperature": 0.5, "top_p": 0.1, "stream": True}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": FORMAT}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [FUNCTION], "parallel_tool_calls": False}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [FUNCTION], "tool_choice": "required"}),
        ({"tools": [{"type": "web_search"}], "tool_choice": "auto"}, {}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"tools": [CUSTOM_TOOL], "tool_choice": {"type": "custom", "name": "c"}},
            {"tools": [CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "c"}}},
        ),
        (
            {"tools": [TOOL, CUSTOM_TOOL], "tool_choice": ALLOWED},
            {
                "tools": [FUNCTION, CUSTOM],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "f"}}],
                    },
                },
            },
        ),
    ],
)
def test_a_field_has_the_meaning_of_the_chats(fields: dict[str, Any], meant: dict[str, Any]) -> None:
    assert of_responses(**fields) == of_chat(messages=[{"role": "user", "content": "hi"}], **meant)


def test_without_a_limit_the_answer_may_fill_the_window() -> None:
    """Chats end after 256 tokens by default, which cut the edits of agents: they send no limit."""
    params = of_responses(max_output_tokens=None).params
    assert params == of_chat(max_tokens=2048, context_length_exceeded_behavior="truncate").params
    assert PLAIN.model.parameters.context_window == 2048


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"instructions": "a", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "?"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {
                        "type": "function_call_output",
                        "call_id": "1",
                        "output": [{"type": "input_image", "image_url": "https://a.b/c"}],
                    },
                ]
            },
            "input[1].output[0].image_url",
        ),
    ],
)
def test_a_rule_of_chats_names_the_place_in_the_clients_body(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(APIError) as caught:
        of_responses(**fields)
    assert (caught.value.status, caught.value.param) == (400, place)


def test_parts_that_the_model_does_not_read_are_listed() -> None:
    items = [{"role": "user", "content": "a"}, *of_assistant("reasoning", "message")]
    body = read(ResponsesRequest, RESPONSE | {"input": items, "reasoning": {"effort": "low"}})[0]
    assert ignored_fields(body, PLAIN) == ["reasoning.effort", "input[1]"]
    assert ignored_fields(body, THINKER) == []
