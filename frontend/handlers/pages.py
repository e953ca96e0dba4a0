"""The pages for browsers: a playground, the API's description and, on the operations port, the server's state.

They are files of `frontend/pages` without any secret. What they show they ask of the API, with the reader's key.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from frontend.errors import NotFound
from frontend.handlers.models import health_live
from frontend.request_context import SETTINGS

FOLDER = Path(__file__).parents[1] / "pages"

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Nothing from elsewhere, no inline scripts and no text as HTML, so that a model's text stays text. `data:` is for the
# previews of the reader's own images.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}


async def playground(request: web.Request) -> web.Response:
    """GET /: the playground for a browser, else the answer of /health/live."""
    if request.app[SETTINGS].has_web_pages and "text/html" in request.headers.get("Accept", ""):
        return _file(request, "playground.html")
    return await health_live(request)


async def docs(request: web.Request) -> web.Response:
    """GET /docs: the description of the API."""
    return _file(request, "docs.html")


async def status(request: web.Request) -> web.Response:
    """GET / of the operations port: the server's state."""
    return _file(request, "status.html")


async def part(request: web.Request) -> web.Response:
    """GET /pages/{name}: a script, a style or an image of the pages."""
    return _file(request, request.match_info["name"])


def _file(request: web.Request, name: str) -> web.Response:
    if not request.app[SETTINGS].has_web_pages or name not in _files():
        raise NotFound(f"There is no {request.method} {request.path}")
    return web.Response(body=_files()[name], content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=_HEADERS)


@functools.cache
def _files() -> Mapping[str, bytes]:
    """Return the files by name; they are small."""
    return {path.name: path.read_bytes() for path in FOLDER.iterdir()}
