"""The generations of a request, merged into one stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from frontend.errors import TritonUnreachable
from model_repository.contract.output import GenerationChunk

_QUEUED_PER_STREAM = 2  # chunks in the queue; with a full queue the streams wait

type Stream = AsyncGenerator[GenerationChunk, None]


def merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
    """Return the chunks of all streams in the order of arrival, each with the index of its stream.

    The first error of a stream is raised. Closing the generator, or an error, closes every stream.
    """
    return _numbered(streams[0]) if len(streams) == 1 else _merged(streams)


async def _numbered(stream: Stream) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
    async with aclosing(stream):
        async for chunk in stream:
            yield 0, chunk


async def _merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
    queue: asyncio.Queue[tuple[int, GenerationChunk] | Exception | None] = asyncio.Queue(
        _QUEUED_PER_STREAM * len(streams)
    )
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    num_running = len(tasks)
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


async def _pump(
    index: int, stream: Stream, queue: asyncio.Queue[tuple[int, GenerationChunk] | Exception | None]
) -> None:
    async with aclosing(stream):
        try:
            async for chunk in stream:
                await queue.put((index, chunk))
        except asyncio.CancelledError:
            # Without a local variable: the traceback would refer to the task, and the task to the traceback.
            if cast(asyncio.Task[None], asyncio.current_task()).cancelling():
                raise
            await queue.put(TritonUnreachable())  # grpc cancels the call when the channel closes
        except Exception as exc:
            await queue.put(exc)
        else:
            await queue.put(None)
