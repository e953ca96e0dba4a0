"""What went wrong at Triton, in the words of the API."""

from __future__ import annotations

import pytest

from frontend import errors
from frontend.errors import APIError
from frontend.triton.failures import error_from_message
from model_repository.errors import (
    EngineFailed,
    InternalError,
    InvalidRequest,
    NotFinite,
    OutputStreamNotOpen,
    Overloaded,
    PromptTooLong,
    TooManyWaiting,
    Unsupported,
)

DOWN = "in ensemble 'demo', Stub process '{}_0_0' is not healthy."


@pytest.mark.parametrize(
    ("message", "kind", "param"),
    [
        (InvalidRequest("x", "text_input").message(), errors.InvalidRequest, "prompt"),
        (InvalidRequest("x", "stop_words").message(), errors.InvalidRequest, "stop"),
        (InvalidRequest("x", "logit_bias_token_ids").message(), errors.InvalidRequest, "logit_bias"),
        (InvalidRequest("x", "return_log_probs").message(), errors.InvalidRequest, "logprobs"),
        (InvalidRequest("x", "lora_name").message(), errors.InvalidRequest, "model"),
        (Unsupported("x", "guided_decoding_guide").message(), errors.UnsupportedValue, "response_format"),
        (InvalidRequest("x", "messages[2]").message(), errors.InvalidRequest, "messages[2]"),
        (InvalidRequest("x").message(), errors.InvalidRequest, None),
        (InvalidRequest("x", "detokenize").message(), errors.InvalidRequest, "tokens"),
        (PromptTooLong("x", "messages").message(), errors.ContextLengthExceeded, "messages"),
        ("in ensemble 'demo', " + PromptTooLong("x").message(), errors.ContextLengthExceeded, None),
        (Overloaded("x").message(), errors.QueueFull, None),
        (TooManyWaiting("x").message(), errors.RateLimited, None),
        (EngineFailed("secret").message(), errors.EngineFailed, None),
        (NotFinite().message(), errors.NotFinite, "prompt"),
        (OutputStreamNotOpen("secret", "request_batch").message(), errors.OutputStreamNotOpen, None),
        (InternalError("secret").message(), errors.ServerError, None),
        ("something secret", errors.ServerError, None),
        (DOWN.format("demo__tokenizer"), errors.StageUnhealthy, None),
        ("Request for unknown model: 'org--x' is not found", errors.ModelNotFound, "model"),
        ("Request for unknown model: 'x' has no available versions", errors.ModelNotReady, "model"),
    ],
)
def test_messages_become_errors_that_tell_the_client_no_secrets(
    message: str, kind: type[APIError], param: str | None
) -> None:
    error = error_from_message(message)
    assert type(error) is kind
    assert error.param == param
    assert "secret" not in error.message


def test_a_dead_stage_is_known_by_its_triton_name() -> None:
    error = error_from_message(DOWN.format("org--demo-1_2__engine"))
    assert isinstance(error, errors.StageUnhealthy)
    assert error.stage == "org--demo-1_2__engine"
