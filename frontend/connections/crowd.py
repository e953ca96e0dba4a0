"""Bounds the open connections of a port: when there are too many, some that wait for their clients are closed."""

from __future__ import annotations

import heapq
import logging
import resource
from collections import defaultdict
from contextlib import suppress
from typing import Protocol

MAX_CONNECTIONS = 16_384  # connections of a port in one process; an idle one costs about 14 kB
MAX_UNFINISHED = 1024  # requests of a port in one process that have not arrived whole; each costs up to 135 kB
_OTHER_FILES = 256  # those of the process itself, of the operations port, and of connections that are being closed

logger = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Let this process open as many files as it may. The usual limit, 1024, is for programs that call select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # the machine's own limit, fs.nr_open, may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def max_connections() -> int:
    """Return the number of connections that the API's port may have open in this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(limit // 2, limit - _OTHER_FILES))


class Member(Protocol):
    """A connection, by the members that `Crowd` needs; `Connection` explains them."""

    waits_since_s: float

    @property
    def address(self) -> str: ...
    @property
    def is_waiting(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    def abort(self) -> None: ...


class Crowd:
    """The open connections of one port.

    Beyond a bound, connections that wait for their clients are closed, first those of the address with most of them:
    its idle connections first, then those that have waited longest. A connection with a whole request stays open. While
    there is room, one address may have all connections, as a proxy does.

    Args:
        max_connections: the bound of open connections.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._open: set[Member] = set()
        self._unfinished: set[Member] = set()

    def add(self, member: Member) -> None:
        """Note a new connection."""
        self._open.add(member)
        if len(self._open) > self._max_connections:
            self._close_some(self._open, self._max_connections, "connections")

    def remove(self, member: Member) -> None:
        """Forget a closed connection."""
        self._open.discard(member)
        self._unfinished.discard(member)

    def begin_request(self, member: Member) -> None:
        """Note a request that has begun to arrive."""
        self._unfinished.add(member)
        if len(self._unfinished) > MAX_UNFINISHED:
            self._close_some(self._unfinished, MAX_UNFINISHED, "unfinished requests")

    def end_request(self, member: Member) -> None:
        """Note that a request has arrived whole."""
        self._unfinished.discard(member)

    def _close_some(self, members: set[Member], limit: int, what: str) -> None:
        """Close a sixteenth, so that the next search is later, but at most half of those that wait."""
        by_address: dict[str, list[Member]] = defaultdict(list)
        for member in members:
            if member.is_waiting:
                by_address[member.address].append(member)
        ranked = [
            (rank, -member.waits_since_s, member)
            for group in by_address.values()
            for rank, member in enumerate(sorted(group, key=lambda each: (each.is_idle, -each.waits_since_s)))
        ]
        num_closed = max(1, min(limit // 16, len(ranked) // 2))
        for _, _, member in (closed := heapq.nlargest(num_closed, ranked, key=lambda each: each[:2])):
            self.remove(member)
            member.abort()
        worst = max(by_address, key=lambda address: len(by_address[address]), default="")
        logger.warning("more than %d %s: closed %d, most of them of %s", limit, what, len(closed), worst)
