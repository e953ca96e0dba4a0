"""One call of a streamed model, which can be ended with an error from outside."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

from frontend.errors import APIError
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.messages import Tensors, tensors_from_response

_END_TIMEOUT_S = 5.0


class Generation:
    """One ModelStreamInfer call, which can be ended with an error from outside."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.has_begun = False  # there was a response, so the tokenizer has done its part
        self.is_engine_lost = False
        self._error: APIError | None = None

    def abort(self, error: APIError, *, is_engine_lost: bool) -> None:
        """Make the reader of the responses raise this error."""
        self._error = error
        self.is_engine_lost = is_engine_lost
        self.call.cancel()

    async def read(self) -> Tensors | None:
        """Return the outputs of the next response, None at the end.

        Raises:
            APIError: what Triton, grpc or `abort` said.
        """
        try:
            response = await self.call.read()
        except grpc.aio.AioRpcError as exc:
            raise error_from_rpc(exc) from exc
        except asyncio.CancelledError:
            # grpc says that `abort` cancelled the call in the same way as asyncio says that our task is cancelled.
            task = asyncio.current_task()
            if self._error is None or (task is not None and task.cancelling()):
                raise
            raise self._error from None
        if response is grpc.aio.EOF:
            return None
        if response.error_message:
            raise error_from_message(response.error_message)
        self.has_begun = True
        return tensors_from_response(response.infer_response)

    async def end(self) -> None:
        """See the call to its end, which follows the last chunk at once, instead of cancelling what is done."""
        with contextlib.suppress(APIError, TimeoutError):
            await asyncio.wait_for(self.read(), _END_TIMEOUT_S)
        self.call.cancel()
