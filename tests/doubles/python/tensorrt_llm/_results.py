"""What a request returns: one object, changed in place by every step that its reader has waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Self


class RequestError(RuntimeError):
    """One request failed; the others go on."""


@dataclass(slots=True)
class Logprob:
    """Of one token."""

    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One sequence of a request; its lists are cumulative."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    num_before: int = 0  # tokens before the last update of this sequence

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self.token_ids)

    @property
    def token_ids_diff(self) -> list[int]:
        """The tokens of the last update of this sequence, however long ago that was."""
        return self.token_ids[self.num_before :]


# Changes a result as one step has left it; an exception is raised to the reader.
type Update = Callable[["RequestOutput"], None] | Exception


class RequestOutput:
    """The result of a request, which is also its handle. It is made in an event loop, and read there."""

    def __init__(self, request_id: int, prompt_token_ids: list[int], params: Any) -> None:
        self.request_id = request_id
        self.prompt: str | None = None
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = params
        self.outputs = [CompletionOutput(index) for index in range(params.n)]
        self.context_logits: Any = None
        self.cached_tokens = 0
        self._finished = False
        self._aborted = False
        self.on_abort: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[Update] = asyncio.Queue()

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return self._finished

    def finish(self) -> None:
        """Note that nothing more comes."""
        self._finished = True

    def abort(self) -> None:
        """End the request; its reader gets a last update."""
        self._aborted = True
        self.on_abort()

    def aborted(self) -> bool:
        """Whether it was aborted."""
        return self._aborted

    def push(self, update: Update) -> None:
        """Hand an update to the reader; called by the executor's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._updates.put_nowait, update)

    async def aresult(self) -> Self:
        """Wait until it is finished."""
        async for _ in self:
            pass
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.aresult().__await__()

    async def __aiter__(self) -> AsyncIterator[Self]:
        while not self._finished:
            update = await self._updates.get()
            if isinstance(update, Exception):
                self._finished = True
                raise update
            update(self)
            yield self


class IterationResult:
    """Statistics of steps. After the last one it waits for others, which only another call would fetch."""

    def __init__(self, items: list[str], timeout_s: float | None) -> None:
        self._items = items
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for item in self._items:
            yield json.loads(item)
        await asyncio.sleep(self._timeout_s or 0.0)
