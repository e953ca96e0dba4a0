"""The frontend's calls to one model: batches of requests go out on one, batches of their chunks come in on another."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from frontend import errors
from frontend.errors import APIError
from frontend.triton.chunk_queue import ChunkQueue, UnreadBytes
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.messages import infer_request, payload_of
from model_repository.contract.codec import pack, pack_batch, unpack
from model_repository.contract.output import ChunkBatch, GenerationChunk, Timing, Usage, VectorChunk
from model_repository.contract.request import MAX_BATCH_REQUESTS, ChatPrompt, GenerationRequest
from model_repository.contract.tensors import (
    CHUNK_BATCH,
    CONTROL,
    OPEN_STREAM,
    REQUEST_BATCH,
    REQUESTS,
    stage_name,
)

logger = logging.getLogger(__name__)

# Triton keeps two kilobytes for each batch until the stream ends, and fifteen for each error until the call ends. A
# call with more than this gets no further requests.
MAX_KEPT_BYTES = 10_000_000
_BATCH_BYTES = 2_000
_ERROR_BYTES = 15_000
# From the end of the output stream to the end of the call.
END_TIMEOUT_S = 5.0
KEEPALIVE_INTERVAL_S = 3.0  # empty batches keep the stream open: the engine ends one that was unused for 10 s
_NO_NUMBERS = "0-0"  # numbers in the id of an empty batch
_BATCH_PAYLOAD_BYTES = 12_000  # requests in one message: the first one waits for the tokens of all
_OPENING_ID = "outputs"  # the request that opens the stream; a batch's id has its first and last number
_CANCEL_ID = "cancel"  # a message that cancels requests
_SLOW_BYTES = 8_000  # a larger request takes long to encode
MAX_HELD_S = 0.05  # of requests, until the engine has told of the last message
MAX_PAUSE_S = 0.008  # between two messages while many requests run
_MANY = 8  # requests
_WEIGHT = 0.1  # of the last completion in the mean length of a step


class MultiplexedCall:
    """One pair of calls, from the opening of an output stream until either breaks or is closed. `run` reads them.

    The engine ends a stream without requests after a while. When readers leave, one message cancels all their
    requests. The next message of this kind waits for the answer. A thousand calls at once damage Triton's memory, and
    so does the end of a call that has requests (its issues 7368 and 8034).

    Outputs have a call of their own: a message to a model that was just unloaded is answered at once, also while an
    output of the same call is being written, and gRPC then aborts the whole Triton (`!byte_buffer->Valid()`).

    Args:
        stub: of Triton's gRPC service.
        ensemble: the model's.
        outputs: the stage or ensemble at which the output stream is opened.
        has_weights: the engine's steps take time.
        on_end: called with this object once it takes no more requests, and the cancel keys of those that run.
        fetch_epoch: returns the engine's epoch; None: it did not answer.
        unread: counts the memory of unread chunks.
    """

    def __init__(
        self,
        stub: Any,
        ensemble: str,
        *,
        outputs: str,
        has_weights: bool,
        on_end: Callable[[MultiplexedCall, list[str]], None],
        fetch_epoch: Callable[[], Awaitable[int | None]],
        unread: UnreadBytes,
    ) -> None:
        self._unread = unread
        self._ensemble = ensemble
        self._outputs = outputs
        self._key = secrets.token_hex(16)  # a secret: never logged, and only sent to Triton
        self._on_end = on_end
        self._fetch_epoch = fetch_epoch
        self.epoch: int | None = None  # the engine's, before the stream was opened
        self._error: APIError | None = None  # why the call takes no more requests
        self._num_batches = self._num_errors = 0
        self._last_batch_s = time.monotonic()  # or the start of the call
        self._numbers = itertools.count(1)
        self._queues: dict[int, ChunkQueue] = {}
        self._cancel_keys_left: dict[int, str] = {}  # of requests that were left before their first chunk
        self._unsent: dict[int, _Packed] = {}
        self._awaited: set[int] = set()  # numbers in the last message, until the engine tells of one of them
        self._sent_s = 0.0  # when it was sent
        self._pause_s = 0.0 if has_weights else MAX_PAUSE_S
        self._has_weights = has_weights
        self._unsent_cancels: list[str] = []
        self._is_cancelling = False  # a message has no answer yet
        self._sender: asyncio.Future[bool] | None = None  # waits for something to send, or for the end of the call
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # grpc reads the messages of each, and half-closes it after the last.
        self._calls = (stub.ModelStreamInfer(self._opening()), stub.ModelStreamInfer(self._messages()))

    @property
    def needs_rotation(self) -> bool:
        """Whether a new call should get the next requests, because Triton keeps too much of this one."""
        return self._num_batches * _BATCH_BYTES + self._num_errors * _ERROR_BYTES >= MAX_KEPT_BYTES

    @property
    def silence_s(self) -> float:
        """Seconds since the last batch, or since the call was made."""
        return time.monotonic() - self._last_batch_s

    async def opened(self) -> None:
        """Wait until the engine knows the stream.

        Raises:
            APIError: it could not be opened.
        """
        if not self._opened.done():
            await asyncio.shield(self._opened)

    def send(self, request: GenerationRequest, on_end: Callable[[Usage | None], None]) -> ChunkQueue:
        """Send a request; return the queue of its chunks, which its reader must close.

        Args:
            on_end: called once the engine has no more work for it, with what it used; None: it was cancelled.

        Raises:
            APIError: the call has ended.
        """
        if self._error is not None:
            raise self._error
        number = next(self._numbers)
        self._unsent[number] = _Packed.of(number, request)
        self._wake_sender()
        queue = self._queues[number] = ChunkQueue(
            request.params.cancel_key,
            is_stream=request.params.is_stream,
            sender=request.params.sender,
            unread=self._unread,
            close=lambda is_cancelled: self._close_queue(number, is_cancelled=is_cancelled),
            on_end=on_end,
        )
        return queue

    def fail_waiting(self, error: APIError) -> int:
        """Fail the requests without a message so far; return how many there were."""
        waiting = [queue for queue in self._queues.values() if queue.is_waiting]
        for queue in waiting:
            queue.fail(error)
        return len(waiting)

    def close(self, error: APIError, *, is_engine_lost: bool = False) -> int:
        """End the call and fail its requests with the error; return how many there were."""
        num_requests = self._end(error, is_engine_lost=is_engine_lost)
        self._cancel_calls()
        return num_requests

    async def run(self) -> None:
        """Read until both calls have ended, or one breaks."""
        error: APIError = errors.TritonUnreachable()
        try:
            await asyncio.gather(*map(self._read, self._calls))
        except APIError as exc:
            error = exc
        except asyncio.CancelledError:  # a call or the channel was closed
            pass
        except Exception:
            logger.exception("an output batch of %s could not be read", self._ensemble)
            error = errors.BadAnswer()
        self.close(error)

    async def _opening(self) -> AsyncIterator[Any]:
        """Yield the message that opens the output stream."""
        # Fetched before the opening: if the engine is lost in between, the call must not count as the next engine's.
        self.epoch = await self._fetch_epoch()
        opening = infer_request(stage_name(self._ensemble, self._outputs), OPEN_STREAM, self._key.encode(), _OPENING_ID)
        opening.parameters["triton_enable_empty_final_response"].bool_param = True  # shows the end of the stream
        yield opening

    async def _messages(self) -> AsyncIterator[Any]:
        """Yield batches of requests, each with those that came since the last one was sent, and of cancels.

        A message costs about as much for one request as for ten. So the next one waits until the engine has announced
        a request of the last one: under load, requests gather meanwhile, and a lone request waits for nothing. While
        many run, messages also have a pause between them, not longer than a step of the engine: a request that
        comes during a step has to wait for its end anyway.
        """
        while self._error is None or self._unsent_cancels:
            if self._unsent_cancels and (not self._is_cancelling or self._error is not None):
                self._is_cancelling = True
                message = json.dumps({"cancel_keys": self._unsent_cancels}).encode()
                self._unsent_cancels.clear()
                yield infer_request(stage_name(self._ensemble, "engine"), CONTROL, message, _CANCEL_ID)
            elif (
                self._unsent
                and len(self._queues) >= _MANY
                and (wait_s := self._sent_s + self._pause_s - time.monotonic()) > 0
            ):
                await asyncio.sleep(wait_s)
            elif (batch := self._next_batch()) or await self._is_silent():
                payload = pack_batch(self._key, [(each.number, each.payload) for each in batch])
                numbers = f"{batch[0].number}-{batch[-1].number}" if batch else _NO_NUMBERS
                yield infer_request(stage_name(self._ensemble, REQUESTS), REQUEST_BATCH, payload, numbers)

    async def _is_silent(self) -> bool:
        """Wait until there is something to send, or the call has ended; return whether an empty batch is due.

        It keeps the stream open for requests that are still in the tokenizer: the engine knows nothing of them, and
        ends an unused stream.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self._sent_s + MAX_HELD_S - time.monotonic() if self._unsent else KEEPALIVE_INTERVAL_S
        self._sender = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake_sender, True)
        try:
            is_time_over = await self._sender
        finally:
            timer.cancel()
            self._sender = None
        if is_time_over:
            self._awaited.clear()
            return not self._unsent and any(queue.is_waiting for queue in self._queues.values())
        return False

    def _wake_sender(self, is_time_over: bool = False) -> None:
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(is_time_over)

    def _next_batch(self) -> list[_Packed]:
        """Return the unsent requests that can share a message; none while the last message holds them back."""
        batch: list[_Packed] = []
        num_bytes = 0
        for packed in self._unsent.values():
            if self._awaited and not packed.is_slow:
                break
            num_bytes += len(packed.payload)
            if batch and (packed.is_slow or batch[0].is_slow or num_bytes > _BATCH_PAYLOAD_BYTES):
                break
            batch.append(packed)
            if len(batch) == MAX_BATCH_REQUESTS:
                break
        for packed in batch:
            del self._unsent[packed.number]
        if batch and not batch[0].is_slow:
            self._awaited.update([packed.number for packed in batch])
            self._sent_s = time.monotonic()
        return batch

    def _cancel(self, cancel_key: str) -> None:
        """Have the engine cancel a request. After the end of the call there is nothing to cancel."""
        if self._error is None:
            self._unsent_cancels.append(cancel_key)
            self._wake_sender()

    def _close_queue(self, number: int, *, is_cancelled: bool) -> None:
        """Forget a number, and ignore later chunks for it. A call that needs rotation ends with its last number."""
        queue = self._queues.pop(number, None)
        if queue is not None:
            queue.drop()
        if queue is None or self._unsent.pop(number, None) is not None:
            return
        if is_cancelled:
            self._cancel(queue.cancel_key)
        if queue.is_waiting:
            self._cancel_keys_left[number] = queue.cancel_key
        elif self.needs_rotation and self._error is None and not self._queues and not self._cancel_keys_left:
            self._end(errors.OutputStreamNotOpen())  # the engine ends the stream, which it finds unused

    def _note_step(self, timing: Timing, usage: Usage | None) -> None:
        """Learn how long a step takes, from a completion that has ended."""
        num_later = 0 if usage is None else usage.num_output_tokens - 1
        if num_later > 0:
            step_s = (timing.last_token_time_ns - timing.first_token_time_ns) / num_later * 1e-9
        else:
            step_s = (timing.first_token_time_ns - timing.first_scheduled_time_ns) * 1e-9
        self._pause_s += _WEIGHT * (min(step_s, MAX_PAUSE_S) - self._pause_s)

    def _end(self, error: APIError, *, is_engine_lost: bool = False) -> int:
        """Take no more requests, and fail the present ones; return how many there were."""
        if self._error is not None:
            return 0
        self._error = error
        sent = [queue.cancel_key for number, queue in self._queues.items() if number not in self._unsent]
        running = [*sent, *self._cancel_keys_left.values(), *self._unsent_cancels]
        is_over = is_engine_lost or isinstance(error, errors.OutputStreamNotOpen)  # no sequence runs
        self._on_end(self, [] if is_over else running)
        self._unsent.clear()
        self._wake_sender()  # the sending task must not wait for ever
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # marks the error as seen for asyncio
        for queue in self._queues.values():
            # A request that has begun cannot be sent again.
            is_lost = not queue.is_waiting and isinstance(error, errors.OutputStreamNotOpen)
            queue.fail(errors.EngineFailed() if is_lost else error)
        return len(self._queues)

    async def _read(self, call: Any) -> None:
        """Read until a call ends.

        Raises:
            APIError: Triton or grpc reported an error, a batch was lost, or the call ended too early.
        """
        while True:
            try:
                response = await call.read()
            except grpc.aio.AioRpcError as exc:
                raise error_from_rpc(exc) from exc
            if response is grpc.aio.EOF:
                if self._error is None:
                    raise errors.EngineFailed("The stream ended before the completion did.")
                return
            answer = response.infer_response
            if answer.id == _CANCEL_ID:
                self._is_cancelling = False
                self._wake_sender()
            elif response.error_message:
                self._fail_batch(answer.id, error_from_message(response.error_message))
            else:
                is_last = answer.parameters["triton_final_response"].bool_param  # a batch may be, or an empty response
                if answer.outputs or not is_last:
                    self._distribute(unpack(ChunkBatch, payload_of(answer, CHUNK_BATCH), CHUNK_BATCH.name))
                    await asyncio.sleep(0)  # the readers that were woken write first
                if is_last:
                    self._half_close()

    def _fail_batch(self, request_id: str, error: APIError) -> None:
        """Give the requests of a batch their error.

        Raises:
            APIError: the error concerns all requests of the call.
        """
        # An engine without the stream is a new one: the other requests of this call are lost too.
        first, mark, last = request_id.partition("-")
        if not mark or isinstance(error, errors.OutputStreamNotOpen):
            raise error
        self._num_errors += 1
        numbers = range(int(first), int(last) + 1)
        self._hear(numbers)
        for number in numbers:
            self._cancel_keys_left.pop(number, None)
            if queue := self._queues.get(number):
                queue.is_waiting = False
                queue.fail(error)

    def _hear(self, numbers: Iterable[int]) -> None:
        """Let the next message go if the engine has told of a request of the last one."""
        if self._awaited and not self._awaited.isdisjoint(numbers):
            self._awaited.clear()
            self._wake_sender()

    def _half_close(self) -> None:
        """Let the calls end, now that the output stream has: the engine had no sequences left."""
        self._end(errors.OutputStreamNotOpen())  # running requests get this error
        asyncio.get_running_loop().call_later(END_TIMEOUT_S, self._cancel_calls)

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()

    def _distribute(self, batch: ChunkBatch) -> None:
        if batch.serial != self._num_batches:
            raise errors.EngineFailed(f"output batch {self._num_batches} was lost")
        self._num_batches += 1
        self._last_batch_s = time.monotonic()
        if not self._opened.done():
            self._opened.set_result(None)
        items = batch.items + batch.vectors if batch.vectors else batch.items
        self._hear([number for number, _ in items])
        for number, item in items:
            if queue := self._queues.get(number):
                queue.is_waiting = False
                if isinstance(item, str):
                    queue.fail(error_from_message(item))
                    continue
                queue.put(item)
                if self._has_weights and isinstance(item, GenerationChunk | VectorChunk) and item.timing is not None:
                    self._note_step(item.timing, item.usage)
            elif number in self._cancel_keys_left:
                self._cancel(self._cancel_keys_left.pop(number))


@dataclass(frozen=True, slots=True)
class _Packed:
    """A request that waits to be sent."""

    number: int
    payload: bytes
    is_slow: bool  # sent alone: no other request waits for its encoding or its grammar

    @classmethod
    def of(cls, number: int, request: GenerationRequest) -> _Packed:
        payload = pack(request)
        has_tools = isinstance(request.prompt, ChatPrompt) and request.prompt.tool_use is not None
        is_slow = request.params.structured_output is not None or has_tools or len(payload) > _SLOW_BYTES
        return cls(number, payload, is_slow)
