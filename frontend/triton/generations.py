"""The generations that run at one Triton: begun, read, cancelled, and ended when what they need is lost."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from frontend import errors
from frontend.errors import APIError
from frontend.triton.call import MultiplexedCall
from frontend.triton.channel import Connection
from frontend.triton.chunk_queue import ChunkQueue
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from model_repository.contract.tensors import slug_of_stage, stage_name

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class Generations:
    """Keeps a call for each model, and in it the requests.

    Args:
        connection: to Triton.
        cancel: tells a model's engine to cancel the sequence with a cancel key.
        ask_epoch: returns a model's engine's epoch, None where it does not say.
        on_late: told a model's slug and a request's id when something comes after the completion's finish.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        cancel: Callable[[str, str], Awaitable[object]],
        ask_epoch: Callable[[str], Awaitable[int | None]],
        on_late: Callable[[str, str], None],
    ) -> None:
        self.on_stage_down: Callable[[str, float], None] = lambda stage, since: None
        self._connection = connection
        self._cancel = cancel
        self._ask_epoch = ask_epoch
        self._on_late = on_late
        self._calls: dict[str, list[MultiplexedCall]] = {}  # by slug; the last one gets the next request
        self._background: set[asyncio.Task[None]] = set()

    async def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion; the last chunk carries the finish reason.

        Leaving it early, for any reason, cancels the engine's sequence by its cancel key.

        Raises:
            APIError: the request was refused, or failed.
        """
        started_at = time.monotonic()
        queue: ChunkQueue | None = None
        is_finished = False
        is_generating = True  # as far as is known here
        try:
            try:
                queue = await self._send(slug, request)
                await queue.ready()
            except errors.OutputStreamNotOpen:  # it was loaded anew: nothing has come, so nothing is lost
                if queue is not None:
                    queue.close()
                queue = None
                queue = await self._send(slug, request)
            while not is_finished:
                chunk = await queue.get()
                is_finished = chunk.finish_reason is not None
                yield chunk
        except (errors.InvalidRequest, errors.NotFound, errors.RateLimited):
            is_generating = False  # refused before the engine saw it
            raise
        except errors.TritonUnreachable as exc:
            if queue is None or queue.is_waiting:
                raise errors.NotTaken() from exc
            raise
        except errors.StageUnhealthy as exc:
            # Triton holds each call of a dead stage for a second: the engine must not get one per stream.
            is_generating = exc.stage != stage_name(slug, "engine")
            self.on_stage_down(exc.stage, started_at)
            raise
        except errors.Overloaded as exc:
            is_generating = type(exc) is not errors.Overloaded  # the queue was full: the engine did not take it
            raise
        finally:
            if queue is not None:
                queue.close()
                if is_generating and not is_finished and not queue.is_engine_lost:
                    self._cancel_sequence(slug, request.params.cancel_key)

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """End the running generations that need a lost stage, by its Triton name; return how many there were.

        The requests that wait for a dead stage do fail by themselves, but one after the other, a second each.

        Args:
            spared_epoch: those that were begun on an engine of this epoch go on; None: none do.
        """
        slug = slug_of_stage(stage)
        calls = list(self._calls.get(slug, ()))
        if stage == stage_name(slug, "tokenizer"):
            return sum(call.fail_waiting(error) for call in calls)
        is_engine_lost = stage == stage_name(slug, "engine")
        calls = [call for call in calls if spared_epoch is None or call.epoch != spared_epoch]
        return sum(call.close(error, is_engine_lost=is_engine_lost) for call in calls)

    def end_all(self, error: APIError) -> int:
        """End every running generation; return how many there were."""
        return sum(call.close(error) for calls in self._calls.values() for call in list(calls))

    def stalled_stages(self, slug: str, fair_s: float, limit_s: float) -> set[str]:
        """Return the stages, by their Triton names, through which nothing has come for longer than the limit.

        Args:
            fair_s: for how much of the time since this was asked last the engine has been seen at work.
        """
        stalled = {call.stalled_stage(fair_s, limit_s) for call in self._calls.get(slug, ())}
        return {stage_name(slug, stage) for stage in stalled if stage is not None}

    async def close(self) -> None:
        """End them all, once the cancellations under way have been told."""
        self.end_all(errors.TritonUnreachable())
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_TIMEOUT_S)

    async def _send(self, slug: str, request: GenerationRequest) -> ChunkQueue:
        """Send a request on the model's call, which is opened if there is none.

        Raises:
            APIError: it could not be opened.
        """
        calls = self._calls.setdefault(slug, [])
        if not calls or calls[-1].needs_rotation:
            call = MultiplexedCall(
                self._connection.stub,
                slug,
                on_end=calls.remove,
                on_orphan=functools.partial(self._cancel_sequence, slug),
                on_late=functools.partial(self._on_late, slug),
                ask_epoch=functools.partial(self._ask_epoch, slug),
            )
            calls.append(call)
            self._spawn(call.run())
        call = calls[-1]
        await call.opened()
        return call.send(request)

    def _cancel_sequence(self, slug: str, cancel_key: str) -> None:
        self._spawn(self._tell_engine_to_cancel(slug, cancel_key))

    async def _tell_engine_to_cancel(self, slug: str, cancel_key: str) -> None:
        try:
            await self._cancel(slug, cancel_key)
        except APIError as exc:
            # Nothing to free where the engine is gone; where it only hangs, the watch reloads it.
            logger.info("cancel not delivered to the engine of %s: %s", slug, exc.code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
