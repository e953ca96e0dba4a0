"""Known fields without support: refused, or listed if they are hints, unless their value changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import UnsupportedValue
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest, ChatMessage
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.tokenization import TokenizeRequest
from tests.frontend.bodies import CHAT, COMPLETION, EMBEDDING, USER, read, refusal

HARMFUL: Any = {"other": "value"}  # changes the answer, in any of these fields

# Each kind of object that has such fields, a body with one of them in it, and its place there.
PLACES: dict[type[Body], tuple[type[Body], Any, str]] = {
    ChatCompletionRequest: (ChatCompletionRequest, lambda field: CHAT | field, ""),
    CompletionRequest: (CompletionRequest, lambda field: COMPLETION | field, ""),
    EmbeddingRequest: (EmbeddingRequest, lambda field: EMBEDDING | field, ""),
    TokenizeRequest: (TokenizeRequest, lambda field: COMPLETION | field, ""),
    ChatMessage: (
        ChatCompletionRequest,
        lambda field: CHAT | {"messages": [USER, {"role": "assistant", "content": "x"} | field]},
        "messages[1].",
    ),
}
FIELDS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in PLACES for name in kind.refused]
HINTS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in PLACES for name in kind.hints]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_an_unsupported_field_is_refused_by_place(kind: type[Body], name: str) -> None:
    model, body_with, place = PLACES[kind]
    error = refusal(model, body_with({name: HARMFUL}), validation_status=422)
    assert (type(error), error.status, error.param) == (UnsupportedValue, 400, place + name)
    assert error.code == "unsupported_value"
    assert error.message.startswith(f"{place}{name}=")
    assert "expected null" in error.message
    if instead := kind.refused[name].instead:
        field, _, part = instead.partition(".")
        assert error.message.endswith(f"; use {instead}")
        served = {**model.model_fields, **ChatCompletionRequest.model_fields}
        assert field in served and (not part or field == "structured_outputs")


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_an_unsupported_field_may_have_a_value_that_changes_nothing(kind: type[Body], name: str) -> None:
    model, body_with, _ = PLACES[kind]
    for neutral in (None, *kind.refused[name].neutral):
        assert read(model, body_with({name: neutral}))[1] == []


@pytest.mark.parametrize(("kind", "name"), HINTS)
def test_a_hint_that_no_model_follows_is_accepted_and_listed_by_place(kind: type[Body], name: str) -> None:
    model, body_with, place = PLACES[kind]
    assert read(model, body_with({name: HARMFUL}))[1] == [place + name]
    for neutral in (None, *kind.hints[name]):
        assert read(model, body_with({name: neutral}))[1] == []


@pytest.mark.parametrize(("name", "value"), [("store", 0), ("store", True), ("parallel_tool_calls", 1)])
def test_true_is_not_one_and_false_is_not_zero(name: str, value: Any) -> None:
    assert refusal(CompletionRequest, COMPLETION | {name: value}).param == name


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_no_field_is_both_served_and_refused(model: type[Body]) -> None:
    assert not set(model.refused) & set(model.model_fields)
    assert not set(model.hints) & {*model.refused, *model.model_fields}


def test_each_endpoint_knows_the_others_fields() -> None:
    chat, completion = ChatCompletionRequest, CompletionRequest
    assert set(chat.model_fields) <= {*completion.model_fields, *completion.refused, *completion.hints}
    assert set(completion.model_fields) <= set(chat.model_fields) | set(chat.refused)
