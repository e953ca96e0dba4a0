"""What the server says of itself."""

from __future__ import annotations

from importlib.metadata import version as distribution_version

from aiohttp import web

from frontend.openapi import openapi_document
from frontend.protocol.answers import Version
from frontend.request_context import json_response


async def version(request: web.Request) -> web.Response:
    """GET /version."""
    answer: Version = {"version": distribution_version("conch")}
    return json_response(answer)


async def openapi(request: web.Request) -> web.Response:
    """GET /openapi.json."""
    return json_response(openapi_document())
