"""A conversation in Anthropic's form is the same prompt, with the same parameters, as the chat it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from frontend.errors import APIError
from frontend.protocol.messages import MessagesRequest
from frontend.settings import Settings
from frontend.translate.message_chat import messages_to_chat
from frontend.translate.places import Places
from frontend.translate.requests import chat_to_requests, ignored_fields
from frontend.triton.models import ModelName
from model_repository.contract.request import GenerationRequest
from tests.fakes import served_model
from tests.frontend.bodies import MESSAGE, chat, read

THINKER = ModelName(
    requested="r",
    model=served_model(reasoning_format="think", template_fields=("enable_thinking", "reasoning_content")),
)
PLAIN = ModelName(requested="r", model=served_model())
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "f", "description": "does", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "does", "parameters": SCHEMA}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"
PNG = "data:image/png;base64,eA=="


def of_messages(name: ModelName = THINKER, *, has_billing_header: bool = False, **fields: Any) -> GenerationRequest:
    body = read(MessagesRequest, MESSAGE | fields)[0]
    places = Places(body)
    try:
        translated = messages_to_chat(body, name, has_billing_header, places)
        return only(chat_to_requests(translated, name, Settings().request_defaults))
    except APIError as exc:
        places.blame(exc)
        raise


def of_chat(name: ModelName = THINKER, **fields: Any) -> GenerationRequest:
    return only(chat_to_requests(chat(**{"max_tokens": 9} | fields), name, Settings().request_defaults))


def only(requests: list[GenerationRequest]) -> GenerationRequest:
    """Return a request without its random numbers."""
    (request,) = requests
    params = request.params
    return replace(request, params=replace(params, cancel_key="", sampling=replace(params.sampling, seed=0)))


# A part of a conversation in both forms.
type Pair = tuple[dict[str, Any], dict[str, Any]]

TEXTS = st.text(st.sampled_from("ab é\n<"), max_size=5)
IMAGES = st.sampled_from(
    [
        ({"type": "base64", "media_type": "image/png", "data": "eA=="}, PNG),
        ({"type": "base64", "media_type": "image/gif", "data": "eQ=="}, "data:image/gif;base64,eQ=="),
    ]
)


def text_pair(text: str) -> Pair:
    return {"type": "text", "text": text}, {"type": "text", "text": text}


PARTS = TEXTS.map(text_pair) | IMAGES.map(
    lambda image: ({"type": "image", "source": image[0]}, {"type": "image_url", "image_url": {"url": image[1]}})
)
INPUTS = st.dictionaries(st.sampled_from("ab"), st.integers(-(2**53), 2**53) | st.text(max_size=3), max_size=2)
CALLS = st.lists(st.tuples(st.sampled_from(["t1", "t2"]), INPUTS), max_size=2)


@st.composite
def of_user(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a message of the user, which may have results of tools, and the messages of the chat."""
    blocks: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for ids in draw(st.lists(st.sampled_from(["t1", "t2"]), max_size=2)):
        parts = draw(st.lists(PARTS, max_size=2))
        is_error = draw(st.booleans())
        blocks.append(
            {"type": "tool_result", "tool_use_id": ids, "content": [each[0] for each in parts], "is_error": is_error}
        )
        content = [text_pair("Error:")[1]] * is_error + [each[1] for each in parts]
        messages.append({"role": "tool", "tool_call_id": ids, "content": content})
    parts = draw(st.lists(PARTS, min_size=not messages, max_size=3))
    if parts:
        messages.append({"role": "user", "content": [each[1] for each in parts]})
    return {"role": "user", "content": blocks + [each[0] for each in parts]}, messages


@st.composite
def of_assistant(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a message of the assistant, and that of the chat."""
    thoughts, texts, calls = draw(st.lists(TEXTS, max_size=2)), draw(st.lists(TEXTS, max_size=2)), draw(CALLS)
    blocks = [
        *({"type": "thinking", "thinking": thought, "signature": "x"} for thought in thoughts),
        *(text_pair(text)[0] for text in texts),
        *({"type": "tool_use", "id": name, "name": "f", "input": given} for name, given in calls),
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [text_pair(text)[1] for text in texts],
        "reasoning_content": "\n\n".join(thoughts),
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": name,
                "type": "function",
                "function": {"name": "f", "arguments": json.dumps(given, ensure_ascii=False)},
            }
            for name, given in calls
        ]
    return {"role": "assistant", "content": blocks}, [message]


@given(
    system=st.none() | st.lists(TEXTS, min_size=1, max_size=2),
    said=st.lists(of_user() | of_assistant(), max_size=4),
    last=of_user(),
    has_tools=st.booleans(),
)
def test_a_conversation_is_the_same_prompt_as_the_chat(system: Any, said: Any, last: Any, has_tools: bool) -> None:
    turns = [*said, last]
    anthropic: dict[str, Any] = {"messages": [each[0] for each in turns]}
    openai: dict[str, Any] = {"messages": [message for each in turns for message in each[1]]}
    if system is not None:
        anthropic["system"] = [text_pair(text)[0] for text in system]
        openai["messages"].insert(0, {"role": "system", "content": [text_pair(text)[1] for text in system]})
    if has_tools:
        anthropic["tools"], openai["tools"] = [TOOL], [FUNCTION]
    assert of_messages(**anthropic) == of_chat(**openai)


TEXT_FORM = {"type": "json_schema", "schema": SCHEMA}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
ONE_CALL = {"parallel_tool_calls": False}


@pytest.mark.parametrize(
    ("fields", "chat_fields"),
    [
        (
            {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 7},
            {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 7},
        ),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stream": True}, {"stream": True}),
        ({"system": "a"}, {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "hi"}]}),
        *(
            ({"messages": [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]},) * 2
            for role in ("system", "developer")
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [FUNCTION], "tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tools": [FUNCTION], "tool_choice": "none"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tools": [FUNCTION], "tool_choice": "required"} | ONE_CALL,
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}},
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True, "thinking_budget_tokens": 9}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking_budget_tokens": 0}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"format": TEXT_FORM}}, {"response_format": CHAT_FORM}),
        ({"metadata": {"user_id": "u"}, "service_tier": "standard_only"}, {}),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "a"}}]}
                ]
            },
            {"messages": [{"role": "user", "content": "a"}]},
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            {
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
    ],
)
def test_a_field_means_that_of_the_chat(fields: dict[str, Any], chat_fields: dict[str, Any]) -> None:
    assert of_messages(**fields) == of_chat(**chat_fields)


def test_the_stop_sequence_is_left_out_whatever_the_servers_default() -> None:
    body = read(MessagesRequest, MESSAGE)[0]
    defaults = Settings(include_stop_str_in_output=True).request_defaults
    [request] = chat_to_requests(messages_to_chat(body, PLAIN, False, Places(body)), PLAIN, defaults)
    assert not request.params.include_stop


def test_thinking_without_a_switch_in_the_template_ends_at_once() -> None:
    always = ModelName(requested="r", model=served_model(reasoning_format="think"))
    assert of_messages(always, thinking={"type": "disabled"}).params.thinking_budget == 0


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        (BILLING, None),
        (f"{BILLING}\nBe nice.", "Be nice."),
        ([BILLING, "Be nice."], "Be nice."),
        ("Be nice.", "Be nice."),
        (f"Be nice.\n{BILLING}", f"Be nice.\n{BILLING}"),
    ],
)
def test_the_billing_header_is_left_out(system: str | list[str], kept: str | None) -> None:
    """A changed prefix reuses no KV cache, and it changes with each request."""
    given = system if isinstance(system, str) else [text_pair(text)[0] for text in system]
    assert of_messages(system=given) == (of_messages() if kept is None else of_messages(system=kept))
    as_it_is = "\n".join(system) if isinstance(system, list) else system
    assert of_messages(system=given, has_billing_header=True) == of_chat(
        messages=[{"role": "system", "content": as_it_is}, {"role": "user", "content": "hi"}]
    )


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL | {"input_schema": {"a": "b" * 300_000}}]}, "tools"),
        (
            {
                "system": "a",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [
                                    {
                                        "type": "image",
                                        "source": {"type": "base64", "media_type": "image/png", "data": "?"},
                                    }
                                ],
                            }
                        ],
                    }
                ],
            },
            "messages[0].content[0].content[0].source.data",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://a.b/c"}}]}
                ]
            },
            "messages[0].content[0].source.url",
        ),
        (
            {
                "system": "a",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
                            {"type": "text", "text": "<image>"},
                        ],
                    }
                ],
            },
            "messages[0].content[1].text",
        ),
    ],
)
def test_a_rule_of_chats_names_the_place_in_the_clients_body(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(APIError) as caught:
        of_messages(**fields)
    assert (caught.value.status, caught.value.param) == (400, place)


def test_parts_that_the_model_does_not_read_are_listed() -> None:
    thought = [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]
    fields = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    messages = [{"role": "assistant", "content": thought}, {"role": "user", "content": "c"}]
    body = read(MessagesRequest, MESSAGE | fields | {"messages": messages})[0]
    assert ignored_fields(body, PLAIN) == ["thinking", "output_config.effort", "messages[0].content[0]"]
    assert ignored_fields(body, THINKER) == []


def test_the_blocks_of_a_document_are_parts_of_the_message() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
    blocks = [{"type": "text", "text": "a"}, image]
    for content, parts in ((blocks, blocks), ("a", blocks[:1])):
        document = {"type": "document", "source": {"type": "content", "content": content}}
        of_document = of_messages(messages=[{"role": "user", "content": [document]}])
        assert of_document == of_messages(messages=[{"role": "user", "content": parts}])
