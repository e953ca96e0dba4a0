"""Fields that are known and not served: refused, or listed if they are hints, unless their value changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import UnsupportedValue
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest, ChatMessage
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.fields import OF_PEERS
from frontend.protocol.tokenization import TokenizeRequest
from tests.frontend.bodies import CHAT, COMPLETION, USER, read, refusal

# A value of each that would change the answer.
HARMFUL: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "moderation": {},
    "store": True,
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit"},
    "chat_template": "x",
    "prompt_logprobs": 1,
    "use_beam_search": True,
    "length_penalty": 0.5,
    "truncate_prompt_tokens": 5,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "guided_json": {},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "x",
    "grammar": "x",
    "ebnf": "x",
    "regex": "a",
    "json_schema": {},
    "format": "json",
    "structural_tag": "{}",
    "n_predict": 5,
    "max_new_tokens": 5,
    "min_new_tokens": 5,
    "stop_sequences": ["a"],
    "no_stop_trim": True,
    "n_probs": 1,
    "repeat_penalty": 1.1,
    "typical_p": 0.9,
    "tfs_z": 0.9,
    "top_a": 0.1,
    "dynatemp_range": 0.5,
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    # of chats
    "prompt": "x",
    "echo": True,
    "suffix": "x",
    "best_of": 2,
    "images": ["data:image/png;base64,"],
    # of completions
    "messages": [USER],
    "top_logprobs": 1,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "parallel_tool_calls": 1,
    "chat_template_kwargs": {"a": 1},
    "add_generation_prompt": False,
    "continue_final_message": True,
    # of /tokenize
    "mm_processor_kwargs": {"a": 1},
}

# Each kind of object that has such fields, a body with one of them in it, and its place there.
PLACES: dict[type[Body], tuple[type[Body], Any, str]] = {
    ChatCompletionRequest: (ChatCompletionRequest, lambda field: CHAT | field, ""),
    CompletionRequest: (CompletionRequest, lambda field: COMPLETION | field, ""),
    TokenizeRequest: (TokenizeRequest, lambda field: COMPLETION | field, ""),
    ChatMessage: (
        ChatCompletionRequest,
        lambda field: CHAT | {"messages": [USER, {"role": "assistant", "content": "x"} | field]},
        "messages[1].",
    ),
}
FIELDS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in PLACES for name in kind.refused]
HINTS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in PLACES for name in kind.hints]
FOLLOWED_ELSEWHERE: dict[str, Any] = {
    "verbosity": "high",
    "reasoning_effort": "high",
    "annotations": [{"type": "url_citation"}],
}


def test_there_is_a_harmful_value_for_every_refused_field() -> None:
    assert set(HARMFUL) == {name for kind in PLACES for name in kind.refused}


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_that_is_not_served_is_refused_by_place(kind: type[Body], name: str) -> None:
    model, body_with, place = PLACES[kind]
    for status in (400, 422):
        error = refusal(model, body_with({name: HARMFUL[name]}), validation_status=status)
        assert isinstance(error, UnsupportedValue)
        assert (error.status, error.code, error.param) == (400, "unsupported_value", place + name)
        assert error.message.startswith(f"{place}{name}=")
        assert "expected null" in error.message
        if name in OF_PEERS:
            field, _, part = OF_PEERS[name][0].partition(".")
            assert error.message.endswith(f"; use {OF_PEERS[name][0]}")
            served = {**model.model_fields, **ChatCompletionRequest.model_fields}
            assert field in served and (not part or field == "structured_outputs")


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_that_is_not_served_may_say_what_changes_nothing(kind: type[Body], name: str) -> None:
    model, body_with, _ = PLACES[kind]
    for neutral in (None, *kind.refused[name]):
        assert read(model, body_with({name: neutral}))[1] == []


@pytest.mark.parametrize(("kind", "name"), HINTS)
def test_a_hint_that_no_model_follows_is_accepted_and_listed_by_place(kind: type[Body], name: str) -> None:
    model, body_with, place = PLACES[kind]
    assert read(model, body_with({name: FOLLOWED_ELSEWHERE[name]}))[1] == [place + name]
    for neutral in (None, *kind.hints[name]):
        assert read(model, body_with({name: neutral}))[1] == []


@pytest.mark.parametrize(("name", "value"), [("store", 0), ("use_beam_search", 0)])
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
