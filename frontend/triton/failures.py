"""Errors of Triton and its stages as errors of the frontend."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

import grpc

from frontend import errors
from frontend.errors import APIError
from model_repository import errors as stage_errors
from model_repository.contract.tensors import ensemble_to_model_id

logger = logging.getLogger(__name__)

_STUB_DOWN = re.compile(r"Stub process '(?P<instance>[^']*)' is not healthy")
_INSTANCE_SUFFIX = re.compile(r"(_\d+)*$")  # Triton calls the instances of a model NAME_0_0, NAME_0_1, ...
_UNKNOWN_MODEL = re.compile(r"unknown model: '(?P<name>[^']*)' is not found")
_RESTRICTED = "This protocol is restricted"
_NOT_READY = re.compile(r"unknown model: '[^']*' has no available versions|is not ready|is not at ready state")

# OpenAI's name of a field, where it differs from the tensor's.
_PARAMS = {
    "text_input": "prompt",
    "input_ids": "prompt",
    "text_pair": "prompt",
    "stop_words": "stop",
    "logit_bias_token_ids": "logit_bias",
    "logit_bias_values": "logit_bias",
    "return_log_probs": "logprobs",
    "exclude_input_in_output": "echo",
    "lora_name": "model",
    "prompt_token_ids": "prompt",
    "guided_decoding_guide": "response_format",
    "guided_decoding_guide_type": "response_format",
    "detokenize": "tokens",
}


def error_from_message(message: str) -> APIError:
    """Return the client's error for an error message of Triton. Only texts of our own stages are passed on."""
    if known := _known_error(message):
        return known
    logger.error("Triton answered: %s", message)
    return errors.ServerError()


def error_from_rpc(exc: grpc.aio.AioRpcError) -> APIError:
    """Return the client's error for a failed call."""
    if known := _known_error(exc.details() or ""):
        return known
    if (exc.details() or "").startswith(_RESTRICTED):
        return errors.TritonKeyRefused()
    if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.TritonUnreachable(reason=exc.details() or "")
    if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.TritonTimeout()
    logger.error("Triton answered %s: %s", exc.code().name, exc.details())
    return errors.ServerError()


@contextlib.contextmanager
def understood(sender: str) -> Iterator[None]:
    """Turn an unreadable answer of Triton into a server error.

    Args:
        sender: of the answer that the block reads, for the log: `of` and its name.

    Raises:
        BadAnswer: it could not be read.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, stage_errors.StageError) as exc:
        logger.exception("Triton's answer %s makes no sense", sender)
        raise errors.BadAnswer() from exc


def _known_error(message: str) -> APIError | None:
    match stage_errors.error_from_message(message):
        case stage_errors.PromptTooLong() as error:
            return _client_mistake(errors.ContextLengthExceeded, error)
        case stage_errors.UnknownAdapter():
            return errors.AdapterNotFound()
        case stage_errors.Unsupported() as error:
            return _client_mistake(errors.UnsupportedValue, error)
        case stage_errors.CannotContinue() as error:
            return _client_mistake(errors.CannotContinue, error)
        case stage_errors.InvalidRequest(field="request_batch" | "engine_requests"):  # not the client's mistake
            return errors.BadAnswer()
        case stage_errors.InvalidRequest() as error:
            return _client_mistake(errors.InvalidRequest, error)
        case stage_errors.Overloaded():
            return errors.QueueFull("The model's queue is full.")
        case stage_errors.TooManyWaiting() as error:
            return errors.RateLimited(error.text, code="too_many_waiting", headers=errors.retry_headers(1.0))
        case stage_errors.KeyRefused():
            return errors.TritonKeyRefused()
        case stage_errors.Unloading():
            return errors.ModelUnloaded()
        case stage_errors.OutputStreamNotOpen():
            return errors.OutputStreamNotOpen()
        case stage_errors.NotFinite():
            return errors.NotFinite()
        case stage_errors.EngineFailed():
            return errors.EngineFailed()
        case stage_errors.StageError():
            return errors.ServerError()
    if found := _STUB_DOWN.search(message):
        return errors.StageUnhealthy(_INSTANCE_SUFFIX.sub("", found["instance"]))
    if found := _UNKNOWN_MODEL.search(message):
        return errors.ModelNotFound(ensemble_to_model_id(found["name"]))
    if _NOT_READY.search(message):
        return errors.ModelNotReady("The model is not ready now.")
    return None


def _client_mistake(kind: type[APIError], error: stage_errors.StageError) -> APIError:
    param = (_PARAMS.get(error.field, error.field) if error.field else None) or None
    return kind(f"{param}: {error.text}" if param else error.text, param=param)
