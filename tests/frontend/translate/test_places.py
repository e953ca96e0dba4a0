"""The client's places of what the stages and the chat name."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import APIError, InvalidRequest
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.messages import MessagesRequest
from frontend.protocol.responses import ResponsesRequest
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.translate.message_chat import messages_to_chat
from frontend.translate.places import Places
from frontend.translate.responses_chat import responses_to_chat
from frontend.triton.failures import error_from_message
from frontend.triton.models import ModelName
from tests.fakes import DEMO
from tests.frontend.bodies import CHAT, COMPLETION, MESSAGE, RESPONSE, read

NAME = ModelName(requested=DEMO.id, model=DEMO)
OK = {"name": "ok", "parameters": {}}
F = {"name": "f", "parameters": {}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start:"}


def chat(**fields: Any) -> Places:
    return Places(read(ChatCompletionRequest, CHAT | fields)[0])


def completion(**fields: Any) -> Places:
    return Places(read(CompletionRequest, COMPLETION | fields)[0])


def messages(**fields: Any) -> Places:
    body = read(MessagesRequest, MESSAGE | fields)[0]
    places = Places(body)
    messages_to_chat(body, NAME, False, places)
    return places


def responses(**fields: Any) -> Places:
    body = read(ResponsesRequest, RESPONSE | fields)[0]
    places = Places(body)
    responses_to_chat(body, NAME, places)
    return places


def refused(places: Places, message: str, index: int = 0) -> APIError:
    """Return the client's error for a message of the stages about one of the completions."""
    error = error_from_message(f"[invalid_value] {message}")
    error.index = index
    places.blame(error)
    return error


SKIPPED = {"type": "web_search_20250305", "name": "web_search"}
MESSAGE_TOOLS = [SKIPPED, {"name": "ok", "input_schema": {}}, {"name": "f", "input_schema": {}}]
RESPONSE_TOOLS = [{"type": "web_search"}, {"type": "function", **F}]
SPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", **OK}, {"type": "function", **F}]}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
TOOLS = [{"type": "function", "function": OK}, {"type": "function", "function": F}]
SCHEMA = {"type": "json_schema", "name": "a", "schema": {}}
PARAMETERS = "tools[0].function.parameters.properties.a.not"

CASES: list[tuple[Places, str, str]] = [
    (chat(tools=TOOLS), "tools[1].function.parameters.a", "tools[1].function.parameters.a"),
    (
        chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": ALLOWED}),
        PARAMETERS,
        "tools[1].function.parameters.properties.a.not",
    ),
    (chat(functions=[OK]), PARAMETERS, "functions[0].parameters.properties.a.not"),
    (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        "schema.type",
        "response_format.json_schema.schema.type",
    ),
    (chat(response_format={"type": "json_object", "schema": {}}), "schema.type", "response_format.schema.type"),
    (completion(structured_outputs={"json": {}}), "schema[0]", "structured_outputs.json[0]"),
    (
        messages(tools=MESSAGE_TOOLS),
        "tools[1].function.parameters.properties.a.not",
        "tools[2].input_schema.properties.a.not",
    ),
    (messages(tools=MESSAGE_TOOLS), "tools[0].function.parameters.type", "tools[1].input_schema.type"),
    (messages(tools=MESSAGE_TOOLS), "tools[1].function.name", "tools[2].name"),
    (
        messages(output_config={"format": {"type": "json_schema", "schema": {}}}),
        "schema.type",
        "output_config.format.schema.type",
    ),
    (responses(tools=RESPONSE_TOOLS), PARAMETERS, "tools[1].parameters.properties.a.not"),
    (
        responses(tools=[{"type": "web_search"}, SPACE]),
        "tools[1].function.parameters.a",
        "tools[1].tools[1].parameters.a",
    ),
    (
        responses(tools=[{"type": "custom", "name": "c", "format": GRAMMAR}]),
        "tools[0].custom.format.grammar.definition",
        "tools[0].format.definition",
    ),
    (responses(text={"format": SCHEMA}), "schema.type", "text.format.schema.type"),
]


@pytest.mark.parametrize(("places", "ours", "theirs"), CASES)
def test_a_place_is_that_of_the_clients_body(places: Places, ours: str, theirs: str) -> None:
    assert [places.of("other"), places.of(ours)] == ["other", theirs]


@pytest.mark.parametrize(("places", "ours", "theirs"), CASES)
def test_an_error_of_the_stages_names_the_place_in_the_clients_body(places: Places, ours: str, theirs: str) -> None:
    field = "tools" if ours.startswith("tools") else "guided_decoding_guide"
    for message in (f"{field}: {ours}: no", f"{ours}: no"):
        if message.startswith("schema"):
            continue
        error = refused(places, message)
        assert (error.param, error.message) == (theirs, f"{theirs}: no")


USER = {"role": "user", "content": "hi"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "eA=="}
PICTURE = {"type": "image", "source": PIXEL}
INPUT_PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
CHAT_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
CALLED = [
    USER,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [PICTURE]}, {"type": "text", "text": "so"}],
    },
    {"role": "assistant", "content": "I"},
]
ITEMS: list[dict[str, Any]] = [
    {"type": "web_search_call"},
    USER,
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "so"}, INPUT_PICTURE]},
]
EMBED = {"model": DEMO.id, "input": ["a", "b"]}
RANK = {"model": DEMO.id, "query": "a", "documents": ["bb", "cc"]}
SCORE = {"model": DEMO.id, "text_1": "aa", "text_2": ["b", "cccc"]}


@pytest.mark.parametrize(
    ("places", "message", "param", "expected"),
    [
        # Forms and tools without a place of a part.
        (chat(regex="("), "guided_decoding_guide: regex: a ( too many", "regex", "regex: regex: a ( too many"),
        (chat(ebnf="("), "guided_decoding_guide: no", "ebnf", "ebnf: no"),
        (
            messages(output_config={"format": {"type": "json_schema", "schema": {}}}),
            "guided_decoding_guide: compilation takes too long",
            "output_config.format",
            "output_config.format: compilation takes too long",
        ),
        (
            messages(tools=MESSAGE_TOOLS),
            "tools: tools[1].function.parameters.properties.a b.not: no",
            "tools[2].input_schema",
            "tools[2].input_schema.properties.a b.not: no",
        ),
        (chat(tools=TOOLS), "tools: compilation takes too long", "tools", "tools: compilation takes too long"),
        (
            chat(tools=TOOLS, response_format={"type": "json_object", "schema": {}}),
            "tools: schema: Unsatisfiable schema",  # of all tools together, in llguidance's words
            "tools",
            "tools: schema: Unsatisfiable schema",
        ),
        (chat(tools=TOOLS), "tool_choice: no", "tool_choice", "tool_choice: no"),
        (chat(functions=[OK], function_call={"name": "ok"}), "tool_choice: no", "function_call", "function_call: no"),
        # Conversations.
        (chat(), "messages: no", "messages", "messages: no"),
        (chat(), "prompt_token_ids: too long", "messages", "messages: too long"),
        (messages(), "prompt_token_ids: too long", "messages", "messages: too long"),
        (responses(), "messages: no", "input", "input: no"),
        (responses(), "prompt_token_ids: too long", "input", "input: too long"),
        (messages(messages=CALLED), "continue_final_message: no", "messages[3]", "messages[3]: no"),
        (messages(messages=CALLED), "messages[3].content: no", "messages[2]", "messages[2]: no"),
        (messages(messages=CALLED), "messages[1].tool_calls[0].function: no", *["messages[1].content[0].name"] * 2),
        (responses(input=ITEMS), "messages[2]: no", "input[4]", "input[4]: no"),
        (responses(input=ITEMS), "messages[1].tool_calls[0]: no", "input[3].name", "input[3].name: no"),
        # Images.
        (
            chat(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "a"}, CHAT_PICTURE]}]),
            "images[0]: no",
            "messages[1].content[1].image_url.url",
            "messages[1].content[1].image_url.url: no",
        ),
        (chat(), "images: no", "messages", "messages: no"),
        (messages(messages=CALLED), "images[0]: no", *["messages[2].content[0].content[0].source.data"] * 2),
        (responses(input=ITEMS), "images[0]: no", *["input[4].output[1].image_url"] * 2),
        (responses(input=ITEMS, truncation="auto"), "images[0]: no", "input", "input: no"),
        (responses(), "images: no", "input", "input: no"),
        # Other fields, which have other names in the stages or in the chat.
        (messages(stop_sequences=["a"]), "stop_words: no", "stop_sequences", "stop_sequences: no"),
        (messages(max_tokens=3), "max_tokens: no", "max_tokens", "max_tokens: no"),
        (
            messages(thinking={"type": "enabled", "budget_tokens": 9}),
            "thinking_budget: no",
            *["thinking.budget_tokens"] * 2,
        ),
        (chat(thinking_token_budget=3), "thinking_budget: no", *["thinking_token_budget"] * 2),
        (chat(thinking_budget_tokens=3), "thinking_budget: no", *["thinking_budget_tokens"] * 2),
        (chat(max_completion_tokens=3), "max_tokens: no", *["max_completion_tokens"] * 2),
        (responses(max_output_tokens=3), "max_tokens: no", "max_output_tokens", "max_output_tokens: no"),
        (responses(include=["message.output_text.logprobs"]), "return_log_probs: no", "include", "include: no"),
        (responses(reasoning={"effort": "none"}), "reasoning_effort: no", "reasoning.effort", "reasoning.effort: no"),
        (responses(tools=RESPONSE_TOOLS, tool_choice="required"), "tool_choice: no", "tool_choice", "tool_choice: no"),
        (chat(mirostat_tau=3), "mirostat_target: no", "mirostat_tau", "mirostat_tau: no"),
        (chat(mirostat_target=3), "mirostat_target: no", "mirostat_target", "mirostat_target: no"),
    ],
)
def test_an_error_names_the_clients_field(places: Places, message: str, param: str, expected: str) -> None:
    error = refused(places, message)
    assert (error.param, error.message) == (param, expected if ": " in expected else f"{expected}: no")


@pytest.mark.parametrize(
    ("places", "index", "place"),
    [
        (completion(prompt=["a", "b"], n=2, best_of=3), 3, "prompt[1]"),
        (completion(prompt=["a"], n=2), 1, "prompt"),
        (Places(read(EmbeddingRequest, EMBED)[0]), 1, "input[1]"),
        (Places(read(EmbeddingRequest, EMBED | {"input": ["a"]})[0]), 0, "input"),
        (Places(read(ClassifyRequest, EMBED)[0]), 1, "input[1]"),
        (Places(read(RerankRequest, RANK)[0]), 1, "documents[1]"),
        (Places(read(RerankRequest, RANK | {"query": "longer"})[0]), 1, "query"),
        (Places(read(ScoreRequest, SCORE)[0]), 0, "text_1"),
        (Places(read(ScoreRequest, SCORE)[0]), 1, "text_2[1]"),
    ],
)
def test_an_error_of_a_prompt_names_its_place(places: Places, index: int, place: str) -> None:
    for name in ("text_input", "input_ids", "text_pair", "prompt_token_ids"):
        error = refused(places, f"{name}: no", index)
        assert (error.param, error.message) == (place, f"{place}: no")


LONG = "n" * 80


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (
            {
                "tools": [
                    {"type": "web_search"},
                    {"type": "namespace", "name": LONG, "tools": [{"type": "function", **F, "name": LONG}]},
                ]
            },
            "tools[1].tools[0].name",
        ),
        ({"input": [*ITEMS, ITEMS[3] | {"namespace": LONG, "name": LONG}]}, "input[5].name"),
        ({"tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "ok"}}, "tool_choice"),
    ],
)
def test_a_rule_of_chats_that_is_broken_names_the_clients_place(fields: dict[str, Any], place: str) -> None:
    body = read(ResponsesRequest, RESPONSE | fields)[0]
    places = Places(body)
    with pytest.raises(InvalidRequest) as caught:
        responses_to_chat(body, NAME, places)
    places.blame(caught.value)
    assert caught.value.param == place
    assert caught.value.message.startswith(place)
