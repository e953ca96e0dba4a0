"""Several generations at a time as one: the choices of a request, each cancelled when the whole is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from frontend.errors import TritonUnreachable
from model_repository.contract.output import GenerationChunk

_QUEUED_PER_STREAM = 2  # chunks that may wait for a slow reader; beyond it the streams wait

type Stream = AsyncGenerator[GenerationChunk, None]


def merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
    """Return the chunks of all streams as they come, each with its stream's index.

    Closing it closes every stream. So does the first error of one of them, which it raises.
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
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            await queue.put(TritonUnreachable())  # grpc says so when the channel is closed under the call
        except Exception as exc:
            await queue.put(exc)
        else:
            await queue.put(None)
