"""Follows a name that stands for several Tritons, such as a headless Service's: each of its addresses is a replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from frontend.triton.endpoints import ANY_MODEL, DNS_PREFIX
from frontend.triton.pool import Connect, ReplicaPool

logger = logging.getLogger(__name__)

_STANDS_FOR_NOTHING = (socket.EAI_NONAME, socket.EAI_NODATA)  # a name server's word, in contrast to its silence
_FIRST_LOOK_S = 5.0


def host_of(endpoint: str) -> str:
    """Return the name in an endpoint that is followed."""
    return endpoint.removeprefix(DNS_PREFIX).rpartition(":")[0]


async def addresses_of(host: str, port: int) -> Collection[str]:
    """Return the endpoints that a name stands for at this moment.

    Raises:
        OSError: nobody knows it, or nobody answers.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for _, _, _, _, address in found]
    return {f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts}


class DnsDiscovery:
    """Keeps a pool's replicas those that a name stands for.

    A name that stands for nothing, or cannot be looked up, changes nothing: what was there may well be there still, and
    is watched. Only where models are named, which are expected to come back, are those let go that do not answer either
    when the name stands for nothing: the models have been scaled to zero.

    Args:
        endpoint: `dns:HOST:PORT`.
        models: that are offered there, as `Endpoints` has them.
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

    async def run(self, interval_s: float) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Look the name up, and make the pool's replicas those that it stands for."""
        try:
            found = set(await self._resolve(self._host, self._port))
        except OSError as exc:
            if self._is_known:
                logger.warning("%s cannot be looked up: %s", self._host, exc.strerror or exc)
            self._is_known = False
            if ANY_MODEL in self._models or exc.errno not in _STANDS_FOR_NOTHING:
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
async def discovering(discoveries: Sequence[DnsDiscovery], interval_s: float) -> AsyncIterator[None]:
    """Follow names within the block, which begins when all have been looked up, or after a few seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_LOOK_S):
            await asyncio.gather(*(discovery.look() for discovery in discoveries))
    tasks = [asyncio.create_task(discovery.run(interval_s)) for discovery in discoveries]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
