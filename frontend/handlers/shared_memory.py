"""Memory that the requests of all senders share, in bounded parts."""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter

from frontend.errors import Overloaded

_WAIT_S = 30.0  # longest wait for memory
_RETURNED_BYTES, _RETURN_S = 1_048_576, 2.0  # freed pieces of this size go back to the system after this time
_MAX_WAITING = 128  # pieces of one sender that wait: each has a request in memory


_malloc_trim = ctypes.CDLL(None).malloc_trim  # some 10 ms for 100 MB, without Python's lock


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
        self._returning: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}  # senders and bytes, in order of arrival

    async def reserve(self, sender: str, num_bytes: int) -> None:
        """Wait for memory. A sender gets it in order, and passes other senders with pieces that do not fit.

        Raises:
            Overloaded: the memory stays full.
        """
        if [each for each, _ in self._waiting.values()].count(sender) >= _MAX_WAITING:
            raise self._full()
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
        if num_bytes >= _RETURNED_BYTES and self._returning is None:
            self._returning = asyncio.get_running_loop().call_later(_RETURN_S, self._return)

    def _return(self) -> None:
        """Return freed memory to the system: glibc keeps all that is below the last piece in use, and that is most."""
        self._returning = None
        asyncio.get_running_loop().run_in_executor(None, _malloc_trim, 0)

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
