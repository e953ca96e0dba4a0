"""Calls of decoupled stages with one response; they can only be called through a stream."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc.aio

from frontend import errors, loop_time
from frontend.errors import APIError
from frontend.triton.failures import error_from_message, error_from_rpc


async def one_response(stub: Any, message: Any, timeout_s: float) -> Any:
    """Return a stage's only response, a ModelInferResponse.

    Args:
        stub: of Triton's gRPC service.
        message: the request.
        timeout_s: for the whole call.

    Raises:
        APIError: the error of Triton or of grpc.
    """
    call = stub.ModelStreamInfer(iter((message,)))
    try:
        return await loop_time.within(timeout_s, _only_response(call))
    except TimeoutError as exc:
        raise errors.TritonTimeout() from exc
    finally:
        call.cancel()


async def _only_response(call: Any) -> Any:
    response = await _read(call)
    if response is None:
        raise errors.EngineFailed("The model's pipeline did not answer.")
    # Never cancelled: Triton might then count the request as running for ever, and unloads no model with a request.
    with contextlib.suppress(APIError):
        await _read(call)
    return response


async def _read(call: Any) -> Any:
    """Return the next response, None at the end."""
    try:
        response = await call.read()
    except grpc.aio.AioRpcError as exc:
        raise error_from_rpc(exc) from exc
    if response is grpc.aio.EOF:
        return None
    if response is None:  # grpc could not read it
        raise errors.BadAnswer()
    if response.error_message:
        raise error_from_message(response.error_message)
    return response.infer_response
