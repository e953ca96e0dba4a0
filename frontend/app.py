"""The HTTP application: routes, middleware, lifetimes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.engine_watch import EngineWatch
from frontend.errors import APIError, InvalidRequest, MethodNotAllowed, NotFound, RequestTooLarge
from frontend.handlers import completions, description, models, tokenization
from frontend.handlers.context import (
    CLIENT_CLOSED,
    FACTS,
    MODELS,
    SETTINGS,
    TRITON,
    WATCH,
    RequestFacts,
    json_response,
    unexpected,
)
from frontend.handlers.limited import add_limit_headers, limits_lifetime
from frontend.models import ModelDirectory, Triton
from frontend.settings import Settings
from frontend.triton.client import TritonClient

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # in the log only: nobody is there to read it

_MAX_SHOWN_MODEL = 256  # characters of what a client calls a model, in the log

_HEADER_WORD = re.compile(r"[!-~]{1,128}")  # printable ASCII


def create_app(settings: Settings, triton: Triton | None = None) -> web.Application:
    """Return the application.

    Args:
        settings: what it needs to know.
        triton: in place of a connection to the endpoint in the settings; the caller closes it.
    """
    app = web.Application(client_max_size=settings.max_body_bytes, middlewares=[_log_request, _answer_errors])
    app[SETTINGS] = settings
    if triton is not None:
        app[TRITON] = triton
    app.cleanup_ctx.extend([_triton_lifetime, _watch_lifetime, limits_lifetime])
    app.on_response_prepare.extend([_name_request, add_limit_headers])
    for root in ("", *settings.root_paths):
        for prefix in (f"{root}/v1", root):
            app.router.add_routes(_routes(prefix))
    app.router.add_get("/health", models.health_ready)  # vLLM's name of it
    app.router.add_get("/health/live", models.health_live)
    app.router.add_get("/health/ready", models.health_ready)
    app.router.add_get("/openapi.json", description.openapi)
    return app


def _routes(prefix: str) -> list[web.RouteDef]:
    return [
        web.post(f"{prefix}/chat/completions", completions.create_chat_completion),
        web.post(f"{prefix}/completions", completions.create_completion),
        web.get(f"{prefix}/models", models.list_models),
        web.get(f"{prefix}/models/{{id:.+}}", models.get_model),
        web.post(f"{prefix}/tokenize", tokenization.tokenize),
        web.post(f"{prefix}/detokenize", tokenization.detokenize),
        web.get(f"{prefix}/version", description.version),
    ]


async def _triton_lifetime(app: web.Application) -> AsyncIterator[None]:
    client = None if TRITON in app else TritonClient(app[SETTINGS].triton_endpoints[0])
    if client is not None:
        app[TRITON] = client
    app[MODELS] = ModelDirectory(app[TRITON])
    yield
    if client is not None:
        await client.close()


async def _watch_lifetime(app: web.Application) -> AsyncIterator[None]:
    app[WATCH] = EngineWatch(app[TRITON], app[MODELS], app[SETTINGS])
    watching = asyncio.create_task(app[WATCH].run())
    yield
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


@web.middleware
async def _log_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    facts = request[FACTS] = RequestFacts(request_id=_request_id(request), started_at=time.monotonic())
    facts.label(_callers(request))
    status = CLIENT_CLOSED_REQUEST
    try:
        response = await handler(request)
        status = response.status if facts.error_code != CLIENT_CLOSED else CLIENT_CLOSED_REQUEST
        return response
    finally:
        level = logging.DEBUG if request.path.startswith("/health") else logging.INFO
        logger.log(
            level,
            "%s %s request_id=%s id=%s model=%s status=%d error=%s"
            " input_tokens=%d output_tokens=%d ttft_ms=%s ms=%.0f%s",
            request.method,
            request.rel_url.raw_path,
            facts.request_id,
            facts.id,
            quote(facts.model[:_MAX_SHOWN_MODEL], safe="/:@+"),
            status,
            facts.error_code or "-",
            facts.num_input_tokens,
            facts.num_output_tokens,
            "-" if facts.ttft_ms is None else f"{facts.ttft_ms:.0f}",
            (time.monotonic() - facts.started_at) * 1000,
            f" labels={json.dumps(facts.labels)}" if facts.labels else "",
        )


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except APIError as exc:
        error = exc
    except web.RequestPayloadError as exc:
        error = InvalidRequest(f"The body does not decode: {exc.__cause__ or exc}")
    except web.HTTPException as exc:
        error = _error_from_http(request, exc)
    except Exception as exc:
        error = unexpected(exc, request[FACTS])
    request[FACTS].error_code = error.code
    return json_response(error.envelope(), status=error.status, headers=error.headers)


def _error_from_http(request: web.Request, exc: web.HTTPException) -> APIError:
    """Return aiohttp's own refusals in our words."""
    match exc:
        case web.HTTPMethodNotAllowed():
            return MethodNotAllowed(f"{request.method} is not allowed for {request.path}", exc.allowed_methods)
        case web.HTTPNotFound():
            return NotFound(f"There is no {request.method} {request.path}")
        case web.HTTPRequestEntityTooLarge():
            limit = request.app[SETTINGS].max_body_bytes
            return RequestTooLarge(f"The body is longer than {limit} bytes")
        case _:
            error = InvalidRequest(HTTPStatus(exc.status).phrase)
            error.status = exc.status
            return error


async def _name_request(request: web.Request, response: web.StreamResponse) -> None:
    if FACTS not in request:
        return
    facts = request[FACTS]
    response.headers["x-request-id"] = facts.request_id
    response.headers["openai-processing-ms"] = f"{(time.monotonic() - facts.started_at) * 1000:.0f}"
    if "organization" in facts.labels:
        response.headers["openai-organization"] = facts.labels["organization"]


def _request_id(request: web.Request) -> str:
    """Return the caller's name for the request if it can stand in a log and a header, or a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _HEADER_WORD.fullmatch(given) else f"req_{secrets.token_hex(16)}"


def _callers(request: web.Request) -> dict[str, str]:
    """Return the organization and the project that the caller names, as OpenAI's clients do."""
    given = {name: request.headers.get(f"OpenAI-{name}", "") for name in ("organization", "project")}
    return {name: value for name, value in given.items() if _HEADER_WORD.fullmatch(value)}
