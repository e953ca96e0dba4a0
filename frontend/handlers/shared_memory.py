"""Memory that the requests of all senders share, in bounded parts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend.errors import Overloaded

_WAIT_S = 30.0  # longest wait for memory


class SharedMemory:
    """Counts the bytes that each sender holds.

    Args:
        max_bytes: of all senders together.
        kept_bytes: of these, for senders that hold nothing.
        purpose: for the error.
    """

    def __init__(self, max_bytes: int, kept_bytes: int, purpose: str) -> None:
        self._num_free_bytes = max_bytes
        self._kept_bytes = kept_bytes
        self._purpose = purpose
        self._held: Counter[str] = Counter()  # bytes of each sender
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}  # senders and bytes, in order of arrival

    async def reserve(self, sender: str, num_bytes: int) -> None:
        """Wait for memory. A sender gets it in order, and passes other senders with pieces that do not fit.

        Raises:
            Overloaded: the memory stays full.
        """
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = sender, num_bytes
        self._grant()
        try:
            async with asyncio.timeout(_WAIT_S):
                await granted
        except BaseException as exc:
            if self._waiting.pop(granted, None) is None:  # it was granted in the same moment
                self.release(sender, num_bytes)
            self._grant()
            if isinstance(exc, TimeoutError):
                raise self._full() from exc
            raise

    def grow(self, sender: str, num_bytes: int) -> None:
        """Get more memory at once, before those that wait.

        Raises:
            Overloaded: there is none. To wait for it, with memory, could be for ever.
        """
        if not self._fits(sender, num_bytes):
            raise self._full()
        self._hold(sender, num_bytes)

    def release(self, sender: str, num_bytes: int) -> None:
        """Free memory."""
        self._num_free_bytes += num_bytes
        self._held[sender] -= num_bytes
        self._held += Counter()  # drops senders that hold nothing
        self._grant()

    @asynccontextmanager
    async def reserved(self, sender: str, num_bytes: int) -> AsyncIterator[None]:
        """Hold memory within a block.

        Raises:
            Overloaded: the memory stays full.
        """
        await self.reserve(sender, num_bytes)
        try:
            yield
        finally:
            self.release(sender, num_bytes)

    def _grant(self) -> None:
        """Give free memory to those that wait."""
        are_behind: set[str] = set()  # senders that wait for an earlier piece
        for granted, (sender, num_bytes) in list(self._waiting.items()):
            if granted.cancelled() or sender in are_behind or not self._fits(sender, num_bytes):
                are_behind.add(sender)
                continue
            del self._waiting[granted]
            self._hold(sender, num_bytes)
            granted.set_result(None)

    def _fits(self, sender: str, num_bytes: int) -> bool:
        num_kept = self._kept_bytes if self._held[sender] else 0
        return self._num_free_bytes - num_bytes >= num_kept

    def _hold(self, sender: str, num_bytes: int) -> None:
        self._num_free_bytes -= num_bytes
        self._held[sender] += num_bytes

    def _full(self) -> Overloaded:
        return Overloaded(f"The server's memory for {self._purpose} is full.")
