"""The body of an embeddings request; test_completion.py has the four forms of its input."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.protocol import embeddings
from frontend.protocol.embeddings import MAX_INPUTS, EmbeddingRequest
from tests.frontend.bodies import EMBEDDING, read, refusal


@pytest.mark.parametrize("value", [["a"] * MAX_INPUTS, [[1]] * MAX_INPUTS])
def test_one_body_may_have_two_thousand_inputs(value: Any) -> None:
    assert len(read(EmbeddingRequest, EMBEDDING | {"input": value})[0].input) == MAX_INPUTS
    error = refusal(EmbeddingRequest, EMBEDDING | {"input": [*value, value[0]]})
    assert (error.status, error.param) == (400, "input")
    assert "2049 values are more than 2048" in error.message


@pytest.mark.parametrize("value", ["", [], [""], ["a", ""], [[]], None, 5, ["a", 5], [1, "a"], [[1], [-1]], [True]])
def test_an_empty_input_and_one_of_another_type_are_refused(value: Any) -> None:
    error = refusal(EmbeddingRequest, EMBEDDING | {"input": value})
    place = "input[1]" if value in (["a", ""], [[1], [-1]]) else "input"
    assert (error.status, error.param) == (400, place)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a", ""], "input[1]='': the text is empty"),
        ([[1], []], "input[1]=[]: the list is empty"),
        ([[1], [-1]], "input[1]=[-1]: Input should be a list of token ids, integers of at least 0"),
    ],
)
def test_a_bad_input_of_a_list_is_named_by_its_place(value: list[Any], message: str) -> None:
    error = refusal(EmbeddingRequest, EMBEDDING | {"input": value})
    assert (error.param, error.message) == ("input[1]", message)


@pytest.mark.parametrize(("value", "rule"), [("", "the text is empty"), ([], "the list is empty")])
def test_an_empty_input_is_refused_in_words_of_the_api(value: Any, rule: str) -> None:
    assert rule in refusal(EmbeddingRequest, EMBEDDING | {"input": value}).message


def test_the_characters_of_all_inputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_CHARS", 10)
    read(EmbeddingRequest, EMBEDDING | {"input": ["a" * 5] * 2})
    error = refusal(EmbeddingRequest, EMBEDDING | {"input": ["a" * 5, "a" * 6]})
    assert (error.param, "11 characters together are more than 10" in error.message) == ("input", True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding_format", "binary"), ("dimensions", 0), ("truncate_prompt_tokens", -2), ("priority", "high")],
)
def test_a_value_outside_of_its_range_is_refused(name: str, value: Any) -> None:
    error = refusal(EmbeddingRequest, EMBEDDING | {name: value})
    assert (error.status, error.param) == (400, name)
