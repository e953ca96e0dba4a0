"""Images and documents that chats name by URL: from hosts that the operator allows, never from private addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, ThreadedResolver, web
from aiohttp.abc import ResolveResult
from yarl import URL

from frontend.errors import InvalidRequest, UnsupportedValue, shown
from frontend.handlers.bodies import LARGE_BODIES, LARGE_BYTES
from frontend.protocol.chat import ChatCompletionRequest
from frontend.request_context import FACTS, SETTINGS, sender_of

TIMEOUT_S = 10.0  # one file, with all its redirects
MAX_REDIRECTS = 3
_DEFAULT_PORTS = {"http": 80, "https": 443}
# All public addresses are here. Others may lead to an IPv4 address of any kind (NAT64), or into the operator's site.
_PUBLIC = ipaddress.ip_network("2000::/3")


class Fetcher:
    """Fetches files by HTTP.

    Args:
        hosts: names, each with `:PORT` unless the port is the scheme's own; `*` is every name.
    """

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = frozenset(hosts)
        self._session = ClientSession(
            connector=TCPConnector(resolver=_PublicResolver(), use_dns_cache=False),
            timeout=ClientTimeout(total=TIMEOUT_S),
            cookie_jar=DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "conch"},
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def fetch(self, url: str, param: str, max_bytes: int) -> bytes:
        """Return what a URL names.

        Raises:
            UnsupportedValue: its host, or that of a redirect, is not allowed.
            InvalidRequest: it cannot be fetched, or is too large.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._follow(URL(url), param, max_bytes)
        except TimeoutError as exc:
            raise InvalidRequest(f"{param}={shown(url)}: nothing within {TIMEOUT_S:g} s", param=param) from exc
        except _NotPublic as exc:
            raise UnsupportedValue(f"{param}={shown(url)}: its address is not public", param=param) from exc
        except (ClientError, OSError, ValueError) as exc:
            raise InvalidRequest(f"{param}={shown(url)}: cannot be fetched", param=param) from exc

    async def _follow(self, url: URL, param: str, max_bytes: int) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url, param)
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    url = url.join(URL(answer.headers.get("Location", "")))
                    continue
                if answer.status != 200:
                    raise InvalidRequest(f"{param}: the URL is answered with status {answer.status}", param=param)
                content = bytearray()
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > max_bytes:
                        raise InvalidRequest(f"{param}: more than {max_bytes} bytes", param=param)
                return bytes(content)
        raise InvalidRequest(f"{param}: more than {MAX_REDIRECTS} redirects", param=param)

    def _check(self, url: URL, param: str) -> None:
        """Refuse hosts that are not allowed. Addresses in place of names would pass the resolver by."""
        default_port = _DEFAULT_PORTS.get(url.scheme)
        host = url.host or ""
        name = host if url.port == default_port else f"{host}:{url.port}"
        is_allowed = name in self._hosts or ("*" in self._hosts and name == host)
        if default_port is None or not is_allowed or _is_address(host):
            rule = "expected a data URI, or http or https and a host that this server may fetch from (--fetch-host)"
            raise UnsupportedValue(f"{param}={shown(str(url))}: {rule}", param=param)


class _NotPublic(Exception):
    """A name has an address in a private network."""


class _PublicResolver(ThreadedResolver):
    """Resolves names to public addresses only. The connection goes to the very address that was checked."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if not all(is_public(each["host"]) for each in found):
            raise _NotPublic
        return found


def is_public(text: str) -> bool:
    """Whether an address belongs to the public internet, also one inside another address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(str(inner))
        return address in _PUBLIC and address.is_global and address.teredo is None
    return address.is_global and not address.is_multicast


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


FETCHER = web.AppKey("fetcher", Fetcher)


async def fetcher(app: web.Application) -> AsyncIterator[None]:
    """Provide the fetcher while the application runs, if it may fetch at all."""
    hosts = app[SETTINGS].fetch_hosts
    if not hosts:
        yield
        return
    app[FETCHER] = Fetcher(hosts)
    yield
    await app[FETCHER].close()


def may_fetch(app: web.Application) -> bool:
    """Whether the server fetches files at all."""
    return app.get(FETCHER) is not None


class Room:
    """The memory of a request for what it names or becomes, together with its body as much as a body may have."""

    def __init__(self, num_bytes: int) -> None:
        self.num_left = num_bytes
        self.num_used = 0

    def use(self, num_bytes: int) -> None:
        """Count bytes; a little more than is left does no harm."""
        self.num_left = max(self.num_left - num_bytes, 0)
        self.num_used += num_bytes


@asynccontextmanager
async def room_beside_body(request: web.Request) -> AsyncIterator[Room]:
    """Reserve memory; what is used of it counts as a part of the body until the request ends.

    Raises:
        Overloaded: the memory for large bodies stays full.
    """
    facts, memory = request[FACTS], request.app[LARGE_BODIES]
    room = Room(request.app[SETTINGS].max_body_bytes - facts.num_body_bytes)
    await memory.reserve(sender_of(request), room.num_left)
    facts.num_reserved_bytes += room.num_left
    yield room
    facts.num_body_bytes += room.num_used
    facts.is_costly |= facts.num_body_bytes > LARGE_BYTES
    facts.num_reserved_bytes -= room.num_left
    memory.release(sender_of(request), room.num_left)


async def fetched_images(
    request: web.Request, chat: ChatCompletionRequest, images: Sequence[bytes]
) -> tuple[bytes, ...]:
    """Return the images of a chat; empty ones are fetched from their URLs, and count as if the client had sent them.

    Raises:
        UnsupportedValue, InvalidRequest: as for one.
        Overloaded: the memory for large bodies stays full.
    """
    fetched: dict[str, bytes] = {}
    async with room_beside_body(request) as room:
        for (place, url), image in zip(chat.image_urls(), images, strict=True):
            if not image and url not in fetched:
                fetched[url] = await request.app[FETCHER].fetch(url, place, room.num_left)
                room.use(len(fetched[url]))
    return tuple(image or fetched[url] for (_, url), image in zip(chat.image_urls(), images, strict=True))
