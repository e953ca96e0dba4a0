"""The frontend's call to one model: its requests go there, and what happens to all of them comes as deliveries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from frontend import errors
from frontend.errors import APIError
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.mailbox import Mailbox
from frontend.triton.messages import elements_from_response, infer_request
from frontend.triton.stall import StallClock
from model_repository import contract
from model_repository.deliveries import DeliveredChunks
from model_repository.generation import GenerationRequest
from model_repository.request_tensors import request_to_tensors
from model_repository.tensors import array

logger = logging.getLogger(__name__)

# Triton keeps two kilobytes of each delivery until their stream ends, and of each error fifteen until the call does:
# with so much of it there is a new call.
MAX_KEPT_BYTES = 10_000_000
_DELIVERY_BYTES = 2_000
_ERROR_BYTES = 15_000
# From the end of the deliveries, and of what we send, to the end of the call.
END_TIMEOUT_S = 5.0
_NUM_FINISHED_KNOWN = 256  # requests of which it is noticed if anything comes after their end
_OPENING_ID = "deliveries"  # of the request that opens the stream; the others have numbers, ...
ID_MARK = "/"  # ... and after this mark what logs call them: Triton hands its request id to every stage


class DeliveryCall:
    """One call, from the opening of a stream of deliveries until it breaks or is closed. `run` reads it.

    The engine ends the stream too, when it has been of no use for a while.

    Args:
        stub: of Triton's gRPC service.
        slug: the model's.
        on_end: told of itself once it takes no more requests.
        on_stray: told the cancel key of a request that the engine has although its reader has left or is too slow.
        on_late: told the id of a request of which something comes although it has finished. Nobody reads that.
        ask_epoch: returns the engine's epoch, None where it does not say.
    """

    def __init__(
        self,
        stub: Any,
        slug: str,
        *,
        on_end: Callable[[DeliveryCall], None],
        on_stray: Callable[[str], None],
        on_late: Callable[[str], None],
        ask_epoch: Callable[[], Awaitable[int | None]],
    ) -> None:
        self._slug = slug
        self._key = secrets.token_hex(16)  # who knows it can write to us: it is neither logged nor told
        self._on_end = on_end
        self._on_stray = on_stray
        self._on_late = on_late
        self._ask_epoch = ask_epoch
        self.epoch: int | None = None  # of the engine, before the stream was opened
        self._error: APIError | None = None  # why it takes no more requests
        self._num_delivered = self._num_errors = 0
        self._num_told = 0  # requests of which something has come, an error too
        self._silence, self._standstill = StallClock(), StallClock()  # of the call; of what waits for the engine
        self._numbers = itertools.count(1)
        self._mailboxes: dict[int, Mailbox] = {}
        self._cancel_keys_left: dict[int, str] = {}  # of requests whose readers left before anything had come
        self._finished: dict[int, str] = {}  # the ids of the last that did, by their numbers
        self._unsent: asyncio.Queue[Any] = asyncio.Queue()  # None: nothing follows
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call = stub.ModelStreamInfer(self._messages())  # grpc takes one after the other, and then half-closes

    @property
    def is_worn(self) -> bool:
        """Whether it should get no further requests."""
        return self._num_delivered * _DELIVERY_BYTES + self._num_errors * _ERROR_BYTES >= MAX_KEPT_BYTES

    async def opened(self) -> None:
        """Wait until the engine knows the stream.

        Raises:
            APIError: it could not be opened.
        """
        await asyncio.shield(self._opened)

    def send(self, request: GenerationRequest) -> Mailbox:
        """Send a request; return where its chunks come. Whoever reads it must leave it.

        Raises:
            APIError: the call has ended.
        """
        if self._error is not None:
            raise self._error
        number = next(self._numbers)
        delivery = {
            contract.DELIVERY_KEY.name: array(contract.DELIVERY_KEY, self._key),
            contract.DELIVERY_NUMBER.name: array(contract.DELIVERY_NUMBER, number),
        }
        message = infer_request(
            self._slug, request_to_tensors(request) | delivery, f"{number}{ID_MARK}{request.request_id}"
        )
        self._unsent.put_nowait(message)
        mailbox = self._mailboxes[number] = Mailbox(
            on_leave=lambda: self._leave(number, request.cancel_key),
            on_overflow=lambda: self._on_stray(request.cancel_key),  # its reader may be stuck for long
            request_id=request.request_id,
        )
        return mailbox

    def fail_waiting(self, error: APIError) -> int:
        """Fail the requests of which nothing has come yet; return how many there were."""
        waiting = [mailbox for mailbox in self._mailboxes.values() if mailbox.is_waiting]
        for mailbox in waiting:
            mailbox.fail(error)
        self._standstill = StallClock()
        return len(waiting)

    def stalled_stage(self, fair_s: float, limit_s: float) -> str | None:
        """Return which stage beside the engine brings nothing although it should, for longer than the limit.

        Args:
            fair_s: for how much of the time since this was asked last the engine has been seen at work.
        """
        # An engine at work has something to tell to each stream once a second, and tells at once what it has taken.
        if self._silence.look(self._num_delivered + self._num_errors, fair_s) > limit_s:
            return "detokenizer"
        is_waiting = any(mailbox.is_waiting for mailbox in self._mailboxes.values())
        is_stuck = self._standstill.look(self._num_told, fair_s if is_waiting else 0.0) > limit_s
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
            logger.exception("a delivery of %s could not be read", self._slug)
            error = errors.BadAnswer()
        self.close(error)

    async def _messages(self) -> AsyncIterator[Any]:
        """Yield what is sent."""
        # Before, not after: of a call that was opened on an engine which was lost then, nobody must believe that it
        # belongs to the next one.
        self.epoch = await self._ask_epoch()
        inputs = {contract.OPEN_DELIVERIES.name: array(contract.OPEN_DELIVERIES, self._key)}
        opening = infer_request(contract.stage_name(self._slug, contract.DELIVERIES), inputs, _OPENING_ID)
        opening.parameters["triton_enable_empty_final_response"].bool_param = True  # else nothing tells of its end
        yield opening
        while (message := await self._unsent.get()) is not None:
            yield message

    def _leave(self, number: int, cancel_key: str) -> None:
        """Forget a number: what still comes for it is not read. The call ends with the last one if it is worn."""
        mailbox = self._mailboxes.pop(number, None)
        if mailbox is None:
            return
        if mailbox.is_finished:
            self._finished[number] = mailbox.request_id
            if len(self._finished) > _NUM_FINISHED_KNOWN:
                del self._finished[next(iter(self._finished))]
        if mailbox.is_waiting:
            self._cancel_keys_left[number] = cancel_key
        elif self.is_worn and self._error is None and not self._mailboxes and not self._cancel_keys_left:
            self.close(errors.DeliveriesNotOpen())

    def _end(self, error: APIError, *, is_engine_lost: bool = False) -> int:
        """Take no more requests, and fail those that are there; return how many."""
        if self._error is not None:
            return 0
        self._error = error
        self._unsent.put_nowait(None)  # else the task that sends would wait for ever where the call is over by itself
        self._on_end(self)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # looked at: nobody may be waiting for it
        for mailbox in self._mailboxes.values():
            is_lost = not mailbox.is_waiting and isinstance(error, errors.DeliveriesNotOpen)  # it cannot begin anew
            mailbox.fail(errors.EngineFailed() if is_lost else error, is_engine_lost=is_engine_lost)
        return len(self._mailboxes)

    async def _read(self) -> None:
        """Read until the call ends.

        Raises:
            APIError: what Triton or grpc said, or a delivery was lost.
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
                self._take_error(answer.id, error_from_message(response.error_message))
            elif not answer.outputs and answer.parameters["triton_final_response"].bool_param:
                self._half_close()
            else:
                self._take(DeliveredChunks.from_elements(elements_from_response(answer)))
                await asyncio.sleep(0)  # who was woken writes first

    def _take_error(self, request_id: str, error: APIError) -> None:
        """Give a request its error.

        Raises:
            APIError: it is everybody's.
        """
        # An engine that does not know the stream is not the one that opened it: the others wait in vain.
        digits = request_id.partition(ID_MARK)[0]
        if not digits.isdecimal() or isinstance(error, errors.DeliveriesNotOpen):
            raise error
        self._num_errors += 1
        number = int(digits)
        self._cancel_keys_left.pop(number, None)
        if mailbox := self._mailboxes.get(number):
            self._told(mailbox)
            mailbox.fail(error)

    def _half_close(self) -> None:
        """Let the call end, now that the stream of deliveries has: the engine had no sequences left."""
        self._end(errors.DeliveriesNotOpen())  # which what is under way will be told
        asyncio.get_running_loop().call_later(END_TIMEOUT_S, self._call.cancel)

    def _told(self, mailbox: Mailbox) -> None:
        """Note that something of a request has come."""
        self._num_told += mailbox.is_waiting
        mailbox.is_waiting = False

    def _take(self, delivered: DeliveredChunks) -> None:
        if delivered.serial != self._num_delivered:
            raise errors.EngineFailed(f"delivery {self._num_delivered} was lost")
        self._num_delivered += 1
        if not self._opened.done():
            self._opened.set_result(None)
        for number, item in delivered.items:
            mailbox = self._mailboxes.get(number)
            if mailbox is None:
                self._take_unread(number)
                continue
            if mailbox.is_finished:
                self._on_late(mailbox.request_id)
                continue
            self._told(mailbox)
            if isinstance(item, str):
                mailbox.fail(error_from_message(item))
            else:
                mailbox.put(item)

    def _take_unread(self, number: int) -> None:
        """Note that something has come for a request that nobody reads any more."""
        if number in self._finished:
            self._on_late(self._finished[number])
        elif number in self._cancel_keys_left:
            self._on_stray(self._cancel_keys_left.pop(number))
