"""Requests for models of which no Triton can be reached: it was scaled to zero, it starts, or it has died."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from frontend.errors import APIError, QueueFull
from frontend.triton.leases import Hold, Holder, ModelLeases, add_waiting
from model_repository.contract.arbiter import ModelStatus

_POLL_S = 0.25  # the lists of models are fetched once a second


class Waking:
    """Keeps requests until a Triton serves their models.

    Args:
        find: returns the leases of the best Triton with a model; None: there is none.
    """

    why_late = "no server of it has started"
    clock = staticmethod(time.monotonic)
    statuses: Mapping[str, ModelStatus] = MappingProxyType({})

    def __init__(self, find: Callable[[str], ModelLeases | None]) -> None:
        self._find = find
        self._waiting: dict[str, list[Hold]] = {}
        self._task: asyncio.Task[None] | None = None

    def take(self, hold: Hold) -> None:
        """Have a hold wait."""
        add_waiting(self._waiting.setdefault(hold.model_id, []), hold)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def take_all(self, holds: Iterable[Hold]) -> None:
        """Have the holds of a Triton that cannot be reached wait for another one."""
        _move(holds, self)

    def requeue(self, hold: Hold) -> bool:
        """Return False: no request begins here."""
        return False

    def leave(self, hold: Hold) -> None:
        """End a hold."""
        waiting = self._waiting.get(hold.model_id, [])
        if hold in waiting:
            waiting.remove(hold)

    def keep(self, model_id: str, keep_alive_s: float | None) -> None:
        """Do nothing: the hold tells it to the Triton that it gets."""

    def end_all(self, error: APIError) -> None:
        """End all waits with an error."""
        waiting, self._waiting = self._waiting, {}
        for hold in itertools.chain.from_iterable(waiting.values()):
            hold.drop(error)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(_POLL_S)
            for model_id, waiting in [*self._waiting.items()]:
                leases = self._find(model_id)
                if leases is not None or not waiting:
                    del self._waiting[model_id]
                if leases is not None:
                    _move(waiting, leases)


def _move(holds: Iterable[Hold], holder: Holder) -> None:
    for hold in holds:
        try:
            hold.move(holder)
        except QueueFull as exc:
            hold.drop(exc)
