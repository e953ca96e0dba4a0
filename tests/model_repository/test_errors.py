"""An error's code and field survive the way through Triton."""

from __future__ import annotations

import pytest

from model_repository.errors import (
    DeliveriesNotOpen,
    EngineFailed,
    InternalError,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    StageError,
    Unsupported,
    error_from_message,
)

ERRORS = (InvalidRequest, PromptTooLong, Unsupported, Overloaded, EngineFailed, DeliveriesNotOpen, InternalError)


@pytest.mark.parametrize("error_class", ERRORS)
@pytest.mark.parametrize("field", [None, "max_tokens", "messages[3]", "messages[0].content"])
@pytest.mark.parametrize("prefix", ["", "in ensemble 'org--demo', ", "in ensemble '[x] demo', "])
def test_an_error_comes_back_from_its_message(error_class: type[StageError], field: str | None, prefix: str) -> None:
    error = error_from_message(prefix + error_class("9000 is too much:\nat most [10]", field).message())
    assert type(error) is error_class
    assert (error.text, error.field) == ("9000 is too much:\nat most [10]", field)


def test_a_message_names_field_value_and_rule() -> None:
    assert InvalidRequest("0 must be at least 1", "max_tokens").message() == (
        "[invalid_value] max_tokens: 0 must be at least 1"
    )


@pytest.mark.parametrize(
    "message", ["", "Request for unknown model: 'x' is not found", "[StatusCode.UNAVAILABLE] failed", "[other] text"]
)
def test_what_triton_says_itself_is_no_stage_error(message: str) -> None:
    assert error_from_message(message) is None


def test_every_code_is_there_once() -> None:
    assert len({error_class.code for error_class in ERRORS}) == len(ERRORS)


def test_every_error_has_a_code_that_triton_knows() -> None:
    assert {error_class.triton_code for error_class in ERRORS} <= {
        "INVALID_ARG",
        "NOT_FOUND",
        "UNAVAILABLE",
        "INTERNAL",
    }
