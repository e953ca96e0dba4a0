"""The client's places of what the stages name."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.messages import MessagesRequest
from frontend.protocol.responses import ResponsesRequest
from frontend.translate.message_chat import messages_to_chat
from frontend.translate.places import blaming, client_places
from frontend.translate.responses_chat import responses_to_chat
from frontend.triton.failures import error_from_message
from frontend.triton.models import ModelName
from tests.fakes import DEMO
from tests.frontend.bodies import CHAT, COMPLETION, MESSAGE, RESPONSE, read

NAME = ModelName(requested=DEMO.id, model=DEMO)
OK = {"name": "ok", "parameters": {}}
F = {"name": "f", "parameters": {}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start:"}


def chat(**fields: Any) -> Body:
    return read(ChatCompletionRequest, CHAT | fields)[0]


def completion(**fields: Any) -> Body:
    return read(CompletionRequest, COMPLETION | fields)[0]


def messages(**fields: Any) -> Body:
    return messages_to_chat(read(MessagesRequest, MESSAGE | fields)[0], NAME, has_billing_header=False)


def responses(**fields: Any) -> Body:
    return responses_to_chat(read(ResponsesRequest, RESPONSE | fields)[0], NAME)


SKIPPED = {"type": "web_search_20250305", "name": "web_search"}
MESSAGE_TOOLS = [SKIPPED, {"name": "ok", "input_schema": {}}, {"name": "f", "input_schema": {}}]
RESPONSE_TOOLS = [{"type": "web_search"}, {"type": "function", **F}]
SPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", **OK}, {"type": "function", **F}]}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
TOOLS = [{"type": "function", "function": OK}, {"type": "function", "function": F}]
SCHEMA = {"type": "json_schema", "name": "a", "schema": {}}
PARAMETERS = "tools[0].function.parameters.properties.a.not"

CASES: list[tuple[Body, str, str]] = [
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


@pytest.mark.parametrize(("body", "ours", "theirs"), CASES)
def test_a_place_is_that_of_the_clients_body(body: Body, ours: str, theirs: str) -> None:
    assert client_places(["other", ours], body) == ["other", theirs]


@pytest.mark.parametrize(("body", "ours", "theirs"), CASES)
def test_an_error_of_the_stages_names_the_place_in_the_clients_body(body: Body, ours: str, theirs: str) -> None:
    field = "tools" if ours.startswith("tools") else "guided_decoding_guide"
    for message in (f"{field}: {ours}: no", f"{ours}: no"):
        if message.startswith("schema"):
            continue
        error = error_from_message(f"[unsupported_value] {message}")
        with pytest.raises(InvalidRequest) as caught, blaming(body):
            raise error
        assert (caught.value.param, caught.value.message) == (theirs, f"{theirs}: no")


@pytest.mark.parametrize(
    ("body", "message", "param", "expected"),
    [
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
    ],
)
def test_an_error_without_a_place_of_a_part_names_the_form(body: Body, message: str, param: str, expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught, blaming(body):
        raise error_from_message(f"[invalid_value] {message}")
    assert (caught.value.param, caught.value.message) == (param, expected)
