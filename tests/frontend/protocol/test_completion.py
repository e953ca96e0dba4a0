"""The body of a completion's request."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.completion import CompletionRequest
from tests.frontend.bodies import COMPLETION, completion, read, refusal


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([0, 2**31 - 1], [[0, 2**31 - 1]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompt == prompts


EMPTY: list[Any] = ["", [], [""], ["a", ""], [[]], [[1], []]]
NO_TEXT: list[Any] = [None, 5, True, {"a": 1}, [None], [{}]]
NO_TOKEN_IDS: list[Any] = [[1, True], [1, "a"], [-1], [2**31], [1.0], [[True]]]
MIXED: list[Any] = [["a", [1]], [[1], "a"], [[1], 2]]


@pytest.mark.parametrize("prompt", [*EMPTY, *NO_TEXT, *NO_TOKEN_IDS, *MIXED], ids=str)
def test_another_value_is_no_prompt(prompt: Any) -> None:
    error = refusal(CompletionRequest, COMPLETION | {"prompt": prompt}, validation_status=422)
    place = "prompt[1]" if prompt in (["a", ""], [[1], []]) else "prompt"
    assert (type(error), error.status, error.param) == (ValidationFailed, 422, place)
    assert error.message.startswith(f"{place}=")


def test_images_are_texts_and_not_too_many() -> None:
    assert refusal(CompletionRequest, COMPLETION | {"images": "data:"}).param == "images"
    assert refusal(CompletionRequest, COMPLETION | {"images": ["a", 5]}).param == "images[1]"
    assert refusal(CompletionRequest, COMPLETION | {"images": ["a"] * 17}).param == "images"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": [[1, 2]], "suffix": "x"}, "suffix"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], param: str) -> None:
    error = refusal(CompletionRequest, COMPLETION | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "best_of": 2},
        {"n": 2, "best_of": 5},
        {"max_tokens": 0, "echo": True},
        {"max_tokens": 0, "max_completion_tokens": 1},
        {"prompt": [1, 2], "suffix": ""},
    ],
)
def test_fields_that_go_together_are_accepted(fields: dict[str, Any]) -> None:
    completion(**fields)


def test_a_server_may_allow_more_log_probabilities_or_fewer() -> None:
    for limit in (0, 5, 20):
        read(CompletionRequest, COMPLETION | {"logprobs": limit}, max_logprobs=limit)
        error = refusal(CompletionRequest, COMPLETION | {"logprobs": limit + 1}, max_logprobs=limit)
        assert error.message == f"logprobs={limit + 1}: Input should be less than or equal to {limit}"
