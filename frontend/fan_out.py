"""The generations of a request, merged into one stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import cast

from frontend.errors import TritonUnreachable
from frontend.request_context import Chunks
from model_repository.contract.output import Chunk

MAX_RUNNING = 128  # streams of one request at a time: a request with more of them does not fill the model's queue
_QUEUED_PER_STREAM = 2  # chunks in the queue; with a full queue the streams wait

type Stream = AbstractAsyncContextManager[Chunks]


def merged(streams: Iterator[Stream], num_streams: int) -> Stream:
    """Return the chunks of all streams in the order of arrival.

    At most MAX_RUNNING run; each next one begins at the end of another. The first error of a stream is raised. Leaving
    the chunks, or an error, leaves every stream.
    """
    return next(streams) if num_streams == 1 else aclosing(_merged(streams, min(num_streams, MAX_RUNNING)))


async def _merged(streams: Iterator[Stream], num_running: int) -> AsyncGenerator[tuple[int, Chunk], None]:
    queue: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(_QUEUED_PER_STREAM * num_running)
    tasks = [asyncio.create_task(_pump(streams, queue)) for _ in range(num_running)]
    try:
        while num_running:
            item = await queue.get()
            if item is None:
                num_running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(waiting: Iterator[Stream], queue: asyncio.Queue[tuple[int, Chunk] | Exception | None]) -> None:
    """Read one stream after the other, each until its end."""
    try:
        for stream in waiting:
            async with stream as chunks:
                async for chunk in chunks:
                    await queue.put(chunk)
    except asyncio.CancelledError:
        # Without a local variable: the traceback would refer to the task, and the task to the traceback.
        if cast(asyncio.Task[None], asyncio.current_task()).cancelling():
            raise
        await queue.put(TritonUnreachable())  # grpc cancels the call when the channel closes
    except Exception as exc:
        await queue.put(exc)
    else:
        await queue.put(None)
