"""The web pages that may call the API from a browser. (aiohttp's own extension is no longer maintained.)

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from frontend.errors import PermissionDenied, shown
from frontend.settings import Settings, is_loopback

_EXPOSED_HEADERS = (
    "x-request-id, x-ignored-params, openai-processing-ms, openai-organization, retry-after, server-timing, "
    "x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens"
)
_PORT = re.compile(r":\d*$")
_MAX_AGE_S = 600  # a browser remembers a preflight for this time


def allow_origins(app: web.Application, settings: Settings) -> None:
    """Answer preflights before all other middlewares, and name the allowed origin in responses."""
    if settings.cors_origins:
        cors = _Cors(frozenset(settings.cors_origins))
        app.middlewares.insert(0, cors.answer_preflight)
        app.on_response_prepare.append(cors.name_origin)


def refuse_foreign_pages(request: web.Request, address: str, origins: Collection[str], hosts: Collection[str]) -> None:
    """Refuse a request that a foreign web page made a browser on this machine or network send.

    `Origin` names the page. A page can also make its own name resolve to this machine (DNS rebinding). Then `Host` has
    that name, so on a loopback address only loopback's names and those of a reverse proxy are accepted.

    Args:
        request: to a server without API keys.
        address: the server listens on it.
        origins: pages that may call the server; *: all.
        hosts: further names of the server; *: all.

    Raises:
        PermissionDenied: a foreign page sent the request.
    """
    host, origin = request.headers.get(hdrs.HOST), request.headers.get(hdrs.ORIGIN)
    if host is not None and is_loopback(address) and "*" not in hosts:
        name = _PORT.sub("", host.lower()).strip("[]")
        if not is_loopback(name) and name not in map(str.lower, hosts):
            rule = "without API keys this server answers to localhost and loopback addresses"
            raise PermissionDenied(f"Host: {shown(host)}: {rule}; --allow-host NAME adds a name")
    if origin is None or "*" in origins or origin in origins:
        return
    if host is None or origin.lower().partition("://")[2] != host.lower():
        raise PermissionDenied(f"Origin: {shown(origin)}: web pages of other origins need --cors-origin ORIGIN")


class _Cors:
    def __init__(self, origins: frozenset[str]) -> None:
        self._origins = origins

    @web.middleware
    async def answer_preflight(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the preflight of a browser. It carries no key, so it runs before every check."""
        if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
            return await handler(request)
        response = web.Response(status=204)
        if self._allowed(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = "GET, POST"
            if wanted := request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS):  # every header is harmless
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(_MAX_AGE_S)
        return response

    async def name_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Allow the page to read the response. The browser's own credentials are never allowed."""
        response.headers.add(hdrs.VARY, "Origin")
        if origin := self._allowed(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED_HEADERS

    def _allowed(self, request: web.Request) -> str | None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None:
            return None
        return "*" if "*" in self._origins else origin if origin in self._origins else None
