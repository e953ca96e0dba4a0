"""The running generations at one Triton: starts, reads, cancels and fails them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self

from frontend import errors
from frontend.errors import APIError
from frontend.triton.call import MultiplexedCall
from frontend.triton.channel import TritonChannel
from frontend.triton.chunk_queue import ChunkQueue, UnreadBytes
from model_repository.contract.output import Chunk, Usage
from model_repository.contract.request import GenerationRequest
from model_repository.contract.tensors import OUTPUTS, ensemble_of_stage, stage_name
from model_repository.model_parameters import ModelParameters
from model_repository.runtimes import RUNTIMES

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class Attempt:
    """The chunks of one completion at one engine. Its reader must close it: early, that cancels the engine's sequence.

    Args:
        send: sends the request, and returns the queue of the chunks.
    """

    __slots__ = ("_is_over", "_queue", "_send", "_was_reopened")

    def __init__(self, send: Callable[[], Awaitable[ChunkQueue]]) -> None:
        self._send = send
        self._queue: ChunkQueue | None = None
        self._was_reopened = self._is_over = False

    @property
    def was_sent(self) -> bool:
        """Whether the engine may have the request."""
        return self._queue is not None

    async def get(self) -> Chunk:
        """Return the next chunk; see `ChunkQueue.get`.

        Raises:
            APIError: the request was refused, or failed.
        """
        try:
            if self._queue is None:
                self._queue = await self._send()
            return await self._queue.get()
        except APIError as exc:
            if isinstance(exc, errors.OutputStreamNotOpen) and not self._was_reopened:
                # The engine was reloaded. No chunk has come, so nothing is lost.
                self._was_reopened = True
                if self._queue is not None:
                    self._queue.close(False)
                    self._queue = None
                return await self.get()
            self._is_over = exc.is_over
            if isinstance(exc, errors.TritonUnreachable) and (self._queue is None or self._queue.is_waiting):
                raise errors.NotTaken() from exc
            raise

    def close(self) -> None:
        """Leave the chunks."""
        if self._queue is not None:
            self._queue.close(not (self._is_over or self._queue.is_finished))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class Generations:
    """Keeps a call for each model. All requests to the model share it.

    Args:
        connection: to Triton.
        cancel: tells the engine of an ensemble to cancel the sequences with these cancel keys.
        fetch_epoch: returns the epoch of an ensemble's engine; None: it did not answer.
        parameters: of the models, by ensemble; a live mapping.
    """

    def __init__(
        self,
        connection: TritonChannel,
        *,
        cancel: Callable[[str, list[str]], Awaitable[object]],
        fetch_epoch: Callable[[str], Awaitable[int | None]],
        parameters: Mapping[str, ModelParameters],
    ) -> None:
        self._connection = connection
        self._cancel = cancel
        self._fetch_epoch = fetch_epoch
        self._parameters = parameters
        self._calls: dict[str, list[MultiplexedCall]] = {}  # ensemble to calls; the last one gets the next request
        self._unread = UnreadBytes()
        self._background: set[asyncio.Task[None]] = set()

    def running(
        self, ensemble: str, request: GenerationRequest, on_end: Callable[[Usage | None], None] = lambda _: None
    ) -> Attempt:
        """Return the chunks of a completion at an engine. The request is sent when the first one is read.

        Args:
            on_end: called once the engine has no more work for it, with what it used; None: it was cancelled. It is not
                called when the reader leaves or gets an error.
        """
        return Attempt(functools.partial(self._send, ensemble, request, on_end))

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """End the running generations that need a lost stage, by its Triton name; return how many there were.

        Triton fails the requests that wait for a dead stage itself, but one after the other, a second each.

        Args:
            spared_epoch: generations that began on an engine of this epoch go on; None: all end.
        """
        ensemble = ensemble_of_stage(stage)
        calls = list(self._calls.get(ensemble, ()))
        if stage == stage_name(ensemble, "tokenizer"):
            return sum(call.fail_waiting(error) for call in calls)
        is_engine_lost = stage == stage_name(ensemble, "engine")
        calls = [call for call in calls if spared_epoch is None or call.epoch != spared_epoch]
        return sum(call.close(error, is_engine_lost=is_engine_lost) for call in calls)

    def end_all(self, error: APIError) -> int:
        """End every running generation; return how many there were."""
        return sum(call.close(error) for calls in self._calls.values() for call in list(calls))

    def end_silent(self, ensemble: str, max_silence_s: float, error: APIError) -> int:
        """End the generations of a model on calls without a batch for too long; return how many there were.

        An engine sends a batch to each output stream once a second, even without new tokens.
        """
        calls = [call for call in self._calls.get(ensemble, ()) if call.silence_s > max_silence_s]
        return sum(call.close(error) for call in calls)

    async def close(self) -> None:
        """Send the outstanding cancellations, and end all generations."""
        self.end_all(errors.TritonUnreachable())
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_TIMEOUT_S)

    async def _send(
        self, ensemble: str, request: GenerationRequest, on_end: Callable[[Usage | None], None]
    ) -> ChunkQueue:
        """Send a request on the model's call, which is opened if there is none.

        Raises:
            APIError: it could not be opened.
        """
        calls = self._calls.setdefault(ensemble, [])
        if not calls or calls[-1].needs_rotation:
            parameters = self._parameters.get(ensemble)
            runtime = None if parameters is None else RUNTIMES.get(parameters.runtime)
            call = MultiplexedCall(
                self._connection.stub,
                ensemble,
                outputs=OUTPUTS if parameters is None else parameters.layout.outputs,
                has_weights=runtime is None or runtime.has_weights,
                on_end=functools.partial(self._forget_call, ensemble),
                fetch_epoch=functools.partial(self._fetch_epoch, ensemble),
                unread=self._unread,
            )
            calls.append(call)
            self._spawn(call.run())
        call = calls[-1]
        await call.opened()
        return call.send(request, on_end)

    def _forget_call(self, ensemble: str, call: MultiplexedCall, running: list[str]) -> None:
        self._calls[ensemble].remove(call)
        if running:
            self._spawn(self._tell_engine_to_cancel(ensemble, running))

    async def _tell_engine_to_cancel(self, ensemble: str, cancel_keys: list[str]) -> None:
        try:
            await self._cancel(ensemble, cancel_keys)
        except APIError as exc:
            # A dead engine has nothing to free, and the health monitor reloads a hanging one.
            logger.info("cancel not delivered to the engine of %s: %s", ensemble, exc.code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
