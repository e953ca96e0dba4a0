"""An error's code and field survive the way through Triton."""

from __future__ import annotations

import pytest

from model_repository.errors import (
    InvalidRequest,
    PromptTooLong,
    StageError,
    error_from_message,
    stage_error,
)

ERRORS = (*StageError.__subclasses__(), *InvalidRequest.__subclasses__())


@pytest.mark.parametrize("error_class", ERRORS)
@pytest.mark.parametrize("field", [None, "max_tokens", "messages[3]", "messages[0].content"])
@pytest.mark.parametrize("prefix", ["", "in ensemble 'org--demo', ", "in ensemble '[x] demo', "])
def test_an_error_comes_back_from_its_message(error_class: type[StageError], field: str | None, prefix: str) -> None:
    error = error_from_message(prefix + error_class("9000 is too much:\nat most [10]", field).message())
    assert type(error) is error_class
    assert (error.text, error.field) == ("9000 is too much:\nat most [10]", field)


@pytest.mark.parametrize(
    "message", ["", "Request for unknown model: 'x' is not found", "[StatusCode.UNAVAILABLE] failed", "[other] text"]
)
def test_a_message_of_triton_itself_is_not_a_stage_error(message: str) -> None:
    assert error_from_message(message) is None


def test_an_unexpected_exception_is_logged_with_its_text_and_its_request_and_answered_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = stage_error(ValueError("a secret"), "req_1")
    assert error.message() == "[internal_error] internal error, see the server's log"
    assert "a secret" in caplog.text
    assert "request_id=req_1" in caplog.text


@pytest.mark.parametrize("request_id", ["req_1", ""])
def test_a_refusal_is_answered_with_its_text_and_logged_without(
    caplog: pytest.LogCaptureFixture, request_id: str
) -> None:
    refusal = PromptTooLong("a secret", "text_input")
    assert stage_error(refusal, request_id) is refusal
    assert caplog.messages == [f"refused: context_length_exceeded request_id={request_id or '-'}"]
