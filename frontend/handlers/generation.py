"""Requests that the engine stage works on: their admission, their record, and their answer without a stream."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from frontend.errors import GenerationTimeout
from frontend.fan_out import merged
from frontend.handlers.call import Call, ignored_header, refuse_ignored
from frontend.handlers.large_answers import LARGE_ANSWERS
from frontend.request_context import (
    FACTS,
    LIMITS,
    SETTINGS,
    TRITON,
    Admitted,
    Chunks,
    sender_of,
)
from frontend.stream_record import StreamRecord, server_timing
from frontend.telemetry.observer import OBSERVER
from frontend.translate.reply import Event, WholeReply
from frontend.triton.chunk_queue import Announced, Resumed
from frontend.triton.generating import Generating
from frontend.triton.leases import Hold
from frontend.triton.pool import ReplicaPool
from model_repository.contract.output import Chunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_facts import Task

RESUMED_HEADER = "x-resumed"  # how often completions of the request have gone on after a death


@dataclass(slots=True, eq=False)
class _Unlimited:
    """A request that a server without a gateway admits; see Admitted."""

    generations: Sequence[GenerationRequest]
    triton: ReplicaPool
    hold: Hold

    @asynccontextmanager
    async def running(self, index: int, generation: GenerationRequest) -> AsyncIterator[Chunks]:
        """See Admitted."""
        await self.hold.ready()
        async with aclosing(Generating(self.triton, self.hold.model_id, generation, index=index)) as chunks:
            yield chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.hold.release()


async def admit(
    call: Call[Any], generations: Sequence[GenerationRequest], num_per_prompt: int = 1, *, is_background: bool = False
) -> Admitted:
    """Count a request as in flight, also while it waits, and apply the limits of its key and model.

    The memory of its answer is reserved first: a place of the model does not wait for readers.

    Args:
        is_background: see LimitControl.

    Raises:
        APIError: the model is full or not ready, or the key has reached a limit.
    """
    request, app, model_id = call.request, call.app, call.name.model_id
    triton, limits = app[TRITON], app.get(LIMITS)
    facts = request[FACTS]
    hold = triton.hold(model_id, sender_of(request), facts.caller.may_name)
    hold.keep(call.body.keep_alive_s if facts.caller.may_keep_models else None)
    try:
        app[OBSERVER].begin_generation(facts)
        if call.name.model.parameters.task is Task.GENERATE:
            await app[LARGE_ANSWERS].expect(request, call.name, generations)
        if limits is None:
            return _Unlimited(generations, triton, hold)
        return await limits.admit(
            request, call.body, call.name, generations, num_per_prompt, hold, is_background=is_background
        )
    except BaseException:
        hold.release()
        raise


class Generation[Writer: WholeReply[Any]]:
    """A request that generates: its completions, its reply, and its record in figures."""

    def __init__(self, call: Call[Any], admitted: Admitted, reply: Writer) -> None:
        self._call, self._request, self._app = call, call.request, call.app
        self._headers = {**call.headers}
        self._has_keywords = False  # the headers have the keywords that the tokenizer stage has found
        self._admitted = admitted
        self._reply = reply
        self._facts = call.request[FACTS]
        self._record = reply.record = StreamRecord(admitted.generations, reply.num_per_prompt)
        self._facts.id, self._facts.stream = reply.id, self._record

    def _chunks(self) -> AbstractAsyncContextManager[Chunks]:
        generations = self._admitted.generations
        return merged(itertools.starmap(self._admitted.running, enumerate(generations)), len(generations))

    def _new_headers(self, notice: Announced | Resumed) -> Mapping[str, str]:
        """Return the header that follows from a notice, complete now.

        That of ignored places is empty if another completion has brought it.

        Raises:
            InvalidRequest: the server refuses a request with such places.
        """
        headers: Mapping[str, str] = {}
        if isinstance(notice, Resumed):
            self._record.num_resumed += 1
            headers = {RESUMED_HEADER: str(self._record.num_resumed)}
        elif not self._has_keywords:
            self._has_keywords = True
            refuse_ignored(self._app, notice.ignored_keywords)
            keywords = map(self._call.places.of, notice.ignored_keywords)
            headers = ignored_header([*self._call.ignored, *keywords])
        self._headers |= headers
        return headers

    async def whole(self) -> web.StreamResponse:
        """Answer with the only chunk of each completion, in the order of the request.

        Raises:
            Overloaded: the answer is larger than expected, and the memory of its sender is full.
        """
        body = await self.collected()
        total_s = time.monotonic() - self._facts.started_at
        timing = server_timing(self._record.slowest, load_s=self._admitted.hold.waited_s, total_s=total_s)
        memory = self._app[LARGE_ANSWERS]
        return await memory.answer(self._request, body, {**self._headers, "Server-Timing": timing})

    async def collected(self) -> Event:
        """Return the answer without a stream.

        Raises:
            Overloaded: see `whole`.
        """
        return await self._within_time(self._collected())

    async def _collected(self) -> Event:
        collected: dict[int, Chunk] = {}
        memory, num_completions = self._app[LARGE_ANSWERS], len(self._record.completions)
        try:
            async with self._chunks() as chunks:
                async for index, chunk in chunks:
                    if isinstance(chunk, Announced | Resumed):
                        self._new_headers(chunk)
                        continue
                    self._record.add(index, chunk)
                    memory.count(self._request, self._call.name, chunk)
                    if chunk.finish_reason is not None:
                        await self._reply.finish(index, chunk)
                    collected[index] = self._reply.kept(index, chunk)
                    if num_completions > 1:
                        await asyncio.sleep(0)
        except BaseException:  # a client that hung up, too; the traceback refers to this function's variables
            collected.clear()
            raise
        assert self._record.num_finished == num_completions, "a generation ends with a finish reason or an error"
        return self._reply.whole([collected[index] for index in range(num_completions)])

    async def _within_time[Result](self, work: Awaitable[Result]) -> Result:
        """Return the result of work, which is stopped at the request's deadline, if there is one.

        Raises:
            GenerationTimeout: the request took longer than `request_timeout_s`.
        """
        limit_s = self._app[SETTINGS].request_timeout_s
        if not limit_s:
            return await work
        passed_s = time.monotonic() - self._facts.started_at
        try:
            async with asyncio.timeout(max(limit_s - passed_s, 0)) as limit:
                return await work
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise GenerationTimeout(f"The answer took longer than {limit_s:g} seconds") from exc
