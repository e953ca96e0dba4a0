"""Follows a DNS name of several Tritons, such as a headless Service's: each of its addresses is a replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from frontend.triton.endpoints import ANY_MODEL, DNS_PREFIX
from frontend.triton.pool import Connect, ReplicaPool

logger = logging.getLogger(__name__)

_NO_ADDRESS = (socket.EAI_NONAME, socket.EAI_NODATA)  # the name server's answer, in contrast to its silence
_INTERVAL_S = 2.0  # pause between lookups of a name
_FIRST_LOOKUPS_S = 5.0


def host_of(endpoint: str) -> str:
    """Return the name in an endpoint `dns:NAME:PORT`."""
    return endpoint.removeprefix(DNS_PREFIX).rpartition(":")[0]


async def addresses_of(host: str, port: int) -> Collection[str]:
    """Return the endpoints at the current addresses of a name.

    Raises:
        OSError: the name is unknown, or no name server answers.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for _, _, _, _, address in found]
    return {f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts}


class DnsDiscovery:
    """Keeps one replica in a pool for each address of a name.

    A failed lookup, or a name without addresses, changes nothing: the known servers may still work, and are monitored.
    The exception are endpoints that are named for models. If their name has no address, the servers that do not answer
    are removed, since the models have been scaled to zero.

    Args:
        endpoint: `dns:HOST:PORT`.
        models: the models that are offered there, as in `Endpoints`.
        connect: makes the replica of an address.
        resolve: returns the endpoints of a host and a port.
    """

    def __init__(
        self,
        endpoint: str,
        models: Collection[str],
        pool: ReplicaPool,
        connect: Connect,
        resolve: Callable[[str, int], Awaitable[Collection[str]]] = addresses_of,
    ) -> None:
        self._host, self._port = host_of(endpoint), int(endpoint.rpartition(":")[2])
        self._models = models
        self._pool = pool
        self._connect = connect
        self._resolve = resolve
        self._followed: set[str] = set()
        self._is_known = True

    async def run(self) -> None:
        """Look the name up at an interval, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """Look the name up, and add and remove replicas."""
        try:
            found = set(await self._resolve(self._host, self._port))
        except OSError as exc:
            if self._is_known:
                logger.warning("%s cannot be looked up: %s", self._host, exc.strerror or exc)
            self._is_known = False
            if ANY_MODEL in self._models or exc.errno not in _NO_ADDRESS:
                return
            found = {each for each in self._followed if self._pool.answers(each)}
        else:
            self._is_known = True
        for endpoint in sorted(found - self._followed):
            logger.info("%s stands for %s", self._host, endpoint)
            self._pool.add(endpoint, self._models, self._connect)
        for endpoint in sorted(self._followed - found):
            logger.info("%s does not stand for %s any more", self._host, endpoint)
            self._pool.remove(endpoint, self._models)
        self._followed = found


@contextlib.asynccontextmanager
async def discovering(discoveries: Sequence[DnsDiscovery]) -> AsyncIterator[None]:
    """Follow names within the block. It begins after the first lookups, or after a few seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_LOOKUPS_S):
            await asyncio.gather(*(discovery.look() for discovery in discoveries))
    tasks = [asyncio.create_task(discovery.run()) for discovery in discoveries]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
