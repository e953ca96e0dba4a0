"""The frontend's call to one model: batches of requests go out on it, and batches of their chunks come back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from frontend import errors
from frontend.errors import APIError
from frontend.triton.chunk_queue import ChunkQueue
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.messages import infer_request, payload_of
from frontend.triton.stall import StallClock
from model_repository.contract.codec import pack, pack_batch, unpack
from model_repository.contract.output import ChunkBatch
from model_repository.contract.request import MAX_BATCH_REQUESTS, ChatPrompt, GenerationRequest
from model_repository.contract.tensors import CHUNK_BATCH, OPEN_STREAM, OUTPUTS, REQUEST_BATCH, REQUESTS, stage_name

logger = logging.getLogger(__name__)

# Triton keeps two kilobytes of each batch of chunks until their stream ends, and of each error fifteen until the call
# does: with so much of it there is a new call.
MAX_KEPT_BYTES = 10_000_000
_BATCH_BYTES = 2_000
_ERROR_BYTES = 15_000
# From the end of the output stream, and of our requests, to the end of the call.
END_TIMEOUT_S = 5.0
_BATCH_PAYLOAD_BYTES = 12_000  # of requests in one message: the tokenizer leaves larger messages to a thread
_NUM_FINISHED_KNOWN = 256  # finished requests whose late chunks are noticed
_OPENING_ID = "outputs"  # of the request that opens the stream; a batch is called by its first and last number
_SLOW_BYTES = 8_000  # of a request: more is slow to encode


class MultiplexedCall:
    """One call, from the opening of an output stream until it breaks or is closed. `run` reads it.

    The engine ends the stream too, when it has been of no use for a while.

    Args:
        stub: of Triton's gRPC service.
        slug: the model's.
        on_end: called with this object once it takes no more requests.
        on_orphan: called with the cancel key of a request that the engine has although its reader left or is too slow.
        on_late: called with the id of a finished request for which another chunk comes.
        ask_epoch: returns the engine's epoch, None where it does not say.
    """

    def __init__(
        self,
        stub: Any,
        slug: str,
        *,
        on_end: Callable[[MultiplexedCall], None],
        on_orphan: Callable[[str], None],
        on_late: Callable[[str], None],
        ask_epoch: Callable[[], Awaitable[int | None]],
    ) -> None:
        self._slug = slug
        self._key = secrets.token_hex(16)  # a secret: it is never logged, and goes to Triton only
        self._on_end = on_end
        self._on_orphan = on_orphan
        self._on_late = on_late
        self._ask_epoch = ask_epoch
        self.epoch: int | None = None  # of the engine, before the stream was opened
        self._error: APIError | None = None  # why it takes no more requests
        self._num_batches = self._num_errors = 0
        self._num_started = 0  # requests of which something has come, an error too
        self._silence, self._standstill = (
            StallClock(),
            StallClock(),
        )  # of the whole call; of requests on their way to the engine
        self._numbers = itertools.count(1)
        self._queues: dict[int, ChunkQueue] = {}
        self._cancel_keys_left: dict[int, str] = {}  # of requests that were left before their first chunk
        self._finished: dict[int, str] = {}  # the ids of the last that did, by their numbers
        self._unsent: deque[_Packed] = deque()
        self._has_unsent = asyncio.Event()  # or the call takes no more
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call = stub.ModelStreamInfer(self._messages())  # grpc takes one after the other, and then half-closes

    @property
    def needs_rotation(self) -> bool:
        """Whether a new call should get the further requests: Triton keeps too much of this one."""
        return self._num_batches * _BATCH_BYTES + self._num_errors * _ERROR_BYTES >= MAX_KEPT_BYTES

    async def opened(self) -> None:
        """Wait until the engine knows the stream.

        Raises:
            APIError: it could not be opened.
        """
        await asyncio.shield(self._opened)

    def send(self, request: GenerationRequest) -> ChunkQueue:
        """Send a request; return the queue of its chunks, which its reader must close.

        Raises:
            APIError: the call has ended.
        """
        if self._error is not None:
            raise self._error
        number, cancel_key = next(self._numbers), request.params.cancel_key
        self._unsent.append(_Packed.of(number, request))
        self._has_unsent.set()
        queue = self._queues[number] = ChunkQueue(
            on_close=lambda: self._close_queue(number, cancel_key),
            on_overflow=lambda: self._on_orphan(cancel_key),  # its reader may be stuck for long
            request_id=request.request_id,
        )
        return queue

    def fail_waiting(self, error: APIError) -> int:
        """Fail the requests of which nothing has come yet; return how many there were."""
        waiting = [queue for queue in self._queues.values() if queue.is_waiting]
        for queue in waiting:
            queue.fail(error)
        self._standstill = StallClock()
        return len(waiting)

    def stalled_stage(self, fair_s: float, limit_s: float) -> str | None:
        """Return which stage beside the engine brings nothing although it should, for longer than the limit.

        Args:
            fair_s: for how much of the time since this was asked last the engine has been seen at work.
        """
        # An engine at work sends a batch to each stream once a second.
        if self._silence.look(self._num_batches + self._num_errors, fair_s) > limit_s:
            return "detokenizer"
        is_waiting = any(queue.is_waiting for queue in self._queues.values())
        is_stuck = self._standstill.look(self._num_started, fair_s if is_waiting else 0.0) > limit_s
        return "tokenizer" if is_stuck and is_waiting else None

    def close(self, error: APIError, *, is_engine_lost: bool = False) -> int:
        """End the call; whoever waits for something of it gets the error. Return how many requests that are."""
        num_requests = self._end(error, is_engine_lost=is_engine_lost)
        self._call.cancel()
        return num_requests

    async def run(self) -> None:
        """Read until the call ends, for whatever reason."""
        error: APIError = errors.EngineFailed("The stream ended before the completion did.")
        try:
            await self._read()
        except APIError as exc:
            error = exc
        except asyncio.CancelledError:  # of the call: it was closed, or the channel was
            error = errors.TritonUnreachable()
        except Exception:
            logger.exception("an output batch of %s could not be read", self._slug)
            error = errors.BadAnswer()
        self.close(error)

    async def _messages(self) -> AsyncIterator[Any]:
        """Yield the opening of the output stream, then batches of requests: those that came during the last write."""
        # Before, not after: of a call that was opened on an engine which was lost then, nobody must believe that it
        # belongs to the next one.
        self.epoch = await self._ask_epoch()
        opening = infer_request(stage_name(self._slug, OUTPUTS), OPEN_STREAM, self._key.encode(), _OPENING_ID)
        opening.parameters["triton_enable_empty_final_response"].bool_param = True  # else nothing tells of its end
        yield opening
        while batch := await self._next_batch():
            payload = pack_batch(self._key, [(each.number, each.payload) for each in batch])
            numbers = f"{batch[0].number}-{batch[-1].number}"
            yield infer_request(stage_name(self._slug, REQUESTS), REQUEST_BATCH, payload, numbers)

    async def _next_batch(self) -> list[_Packed]:
        """Wait for requests; return those that can share a message: an empty list once the call takes no more."""
        while not self._unsent and self._error is None:
            self._has_unsent.clear()
            await self._has_unsent.wait()
        batch: list[_Packed] = []
        num_bytes = 0
        while self._unsent and len(batch) < MAX_BATCH_REQUESTS:
            num_bytes += len(self._unsent[0].payload)
            if batch and (self._unsent[0].is_slow or batch[0].is_slow or num_bytes > _BATCH_PAYLOAD_BYTES):
                break
            batch.append(self._unsent.popleft())
        return batch

    def _close_queue(self, number: int, cancel_key: str) -> None:
        """Forget a number, and ignore later chunks for it. A call that needs rotation ends with its last number."""
        queue = self._queues.pop(number, None)
        if queue is None:
            return
        if queue.is_finished:
            self._finished[number] = queue.request_id
            if len(self._finished) > _NUM_FINISHED_KNOWN:
                del self._finished[next(iter(self._finished))]
        if queue.is_waiting:
            self._cancel_keys_left[number] = cancel_key
        elif self.needs_rotation and self._error is None and not self._queues and not self._cancel_keys_left:
            self.close(errors.OutputStreamNotOpen())

    def _end(self, error: APIError, *, is_engine_lost: bool = False) -> int:
        """Take no more requests, and fail those that are there; return how many."""
        if self._error is not None:
            return 0
        self._error = error
        self._unsent.clear()
        self._has_unsent.set()  # else the task that sends would wait for ever where the call is over by itself
        self._on_end(self)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # else asyncio complains when nothing waits for it
        for queue in self._queues.values():
            is_lost = not queue.is_waiting and isinstance(error, errors.OutputStreamNotOpen)  # it cannot begin anew
            queue.fail(errors.EngineFailed() if is_lost else error, is_engine_lost=is_engine_lost)
        return len(self._queues)

    async def _read(self) -> None:
        """Read until the call ends.

        Raises:
            APIError: Triton or grpc reported an error, or a batch was lost.
        """
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as exc:
                raise error_from_rpc(exc) from exc
            if response is grpc.aio.EOF:
                return
            answer = response.infer_response
            if response.error_message:
                self._fail_batch(answer.id, error_from_message(response.error_message))
            elif not answer.outputs and answer.parameters["triton_final_response"].bool_param:
                self._half_close()
            else:
                self._distribute(unpack(ChunkBatch, payload_of(answer, CHUNK_BATCH), CHUNK_BATCH.name))
                await asyncio.sleep(0)  # the readers that were woken write first

    def _fail_batch(self, request_id: str, error: APIError) -> None:
        """Give the requests of a batch their error.

        Raises:
            APIError: it is everybody's.
        """
        # An engine that does not know the stream is not the one that opened it: the others wait in vain.
        first, mark, last = request_id.partition("-")
        if not mark or isinstance(error, errors.OutputStreamNotOpen):
            raise error
        self._num_errors += 1
        for number in range(int(first), int(last) + 1):
            self._cancel_keys_left.pop(number, None)
            if queue := self._queues.get(number):
                self._started(queue)
                queue.fail(error)

    def _half_close(self) -> None:
        """Let the call end, now that the output stream has: the engine had no sequences left."""
        self._end(errors.OutputStreamNotOpen())  # the error of requests that are under way
        asyncio.get_running_loop().call_later(END_TIMEOUT_S, self._call.cancel)

    def _started(self, queue: ChunkQueue) -> None:
        """Note that something of a request has come."""
        self._num_started += queue.is_waiting
        queue.is_waiting = False

    def _distribute(self, batch: ChunkBatch) -> None:
        if batch.serial != self._num_batches:
            raise errors.EngineFailed(f"output batch {self._num_batches} was lost")
        self._num_batches += 1
        if not self._opened.done():
            self._opened.set_result(None)
        for number, item in batch.items:
            queue = self._queues.get(number)
            if queue is None:
                self._note_unread(number)
            elif queue.is_finished:
                self._on_late(queue.request_id)
            else:
                self._started(queue)
                if isinstance(item, str):
                    queue.fail(error_from_message(item))
                else:
                    queue.put(item)

    def _note_unread(self, number: int) -> None:
        """Note that a chunk has come for a request without a reader."""
        if number in self._finished:
            self._on_late(self._finished[number])
        elif number in self._cancel_keys_left:
            self._on_orphan(self._cancel_keys_left.pop(number))


@dataclass(frozen=True, slots=True)
class _Packed:
    """A request that waits to be sent."""

    number: int
    payload: bytes
    is_slow: bool  # it travels alone, so that no other request waits for its encoding or its grammar

    @classmethod
    def of(cls, number: int, request: GenerationRequest) -> _Packed:
        payload = pack(request)
        has_tools = isinstance(request.prompt, ChatPrompt) and request.prompt.tool_use is not None
        is_slow = request.params.structured_output is not None or has_tools or len(payload) > _SLOW_BYTES
        return cls(number, payload, is_slow)
