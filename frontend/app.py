"""The HTTP application: routes, middleware, lifetimes."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.connections.connection import leave_packed_body
from frontend.connections.refusals import SERVER
from frontend.errors import APIError, InvalidRequest, MethodNotAllowed, NotFound, RequestTooLarge
from frontend.gateway.install import install_gateway
from frontend.handlers import completions, description, models, tokenization
from frontend.handlers.bodies import LARGE_BODIES, expect_later, large_bodies_of
from frontend.request_context import (
    CLIENT_CLOSED,
    FACTS,
    IS_PUBLIC,
    MODELS,
    SETTINGS,
    TRITON,
    RequestFacts,
    is_draining,
    json_response,
    unexpected,
)
from frontend.settings import Settings
from frontend.telemetry.definitions import UNKNOWN
from frontend.telemetry.observer import OBSERVER, Observer
from frontend.telemetry.scrape import metrics as scrape_metrics
from frontend.telemetry.tracing import open_tracer
from frontend.triton.channel import triton_credentials
from frontend.triton.client import TritonClient
from frontend.triton.discovery import DnsDiscovery, discovering, host_of
from frontend.triton.endpoints import ANY_MODEL, DNS_PREFIX, Endpoints, ModelFilter
from frontend.triton.models import ModelDirectory, Triton
from frontend.triton.pool import ReplicaPool
from frontend.triton.replica import Replica

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # in the log only: nobody is there to read it

_HEADER_WORD = re.compile(r"[!-~]{1,128}")  # printable ASCII
_OTHER_CHAT_APIS = re.compile(r"(?P<root>.*)/(responses|messages)")  # OpenAI's newer one, and Anthropic's


def create_app(
    settings: Settings, tritons: Mapping[str, Triton] | None = None, tell_others: Callable[[], None] = lambda: None
) -> web.Application:
    """Return the application.

    Args:
        settings: what it needs to know.
        tritons: by endpoint, in place of connections to those in the settings.
        tell_others: called when the drain begins, for the other processes on the port.
    """
    app = web.Application(client_max_size=settings.max_body_bytes, middlewares=[log_request, answer_errors])
    app[SETTINGS], app[IS_PUBLIC] = settings, True
    app[LARGE_BODIES] = large_bodies_of(settings.max_body_bytes)

    async def replicas_lifetime(app: web.Application) -> AsyncIterator[None]:
        observer, credentials, key = app[OBSERVER], triton_credentials(settings), settings.triton_key
        endpoints = Endpoints.parse(settings.triton_endpoints)

        def connect(endpoint: str, model_filter: ModelFilter, *, name: str = "") -> Replica:
            name = settings.triton_tls_name or name
            triton = (
                tritons[endpoint]
                if tritons
                else TritonClient(endpoint, credentials, name, observer.late, model_filter, key)
            )
            return Replica(
                endpoint, triton, settings, on_look=partial(observer.looked_at, endpoint), model_filter=model_filter
            )

        pool = ReplicaPool(
            [], settings.retry_share, observer.forget, expected=endpoints.expected, is_complete=endpoints.is_complete
        )
        discoveries = []
        for endpoint, named_for in (dict.fromkeys(tritons, (ANY_MODEL,)) if tritons else endpoints.models).items():
            if endpoint.startswith(DNS_PREFIX):
                discoveries.append(DnsDiscovery(endpoint, named_for, pool, partial(connect, name=host_of(endpoint))))
            else:
                pool.add(endpoint, named_for, connect)
        app[TRITON], app[MODELS] = pool, ModelDirectory(pool, aliases=endpoints.aliases)
        async with pool.running(), discovering(discoveries, settings.dns_interval_s):
            yield
        await pool.close()

    app.cleanup_ctx.extend([_observer_lifetime, replicas_lifetime])
    app.on_response_prepare.extend([name_request, leave_packed_body])
    install_gateway(app, tell_others)
    for root in ("", *settings.root_paths):
        for prefix in (f"{root}/v1", root):
            app.router.add_routes(_routes(prefix))
    app.router.add_get("/health", models.health_ready)  # vLLM's name of it
    app.router.add_get("/health/live", models.health_live)
    app.router.add_get("/health/ready", models.health_ready)
    app.router.add_get("/openapi.json", description.openapi)
    if not settings.admin_port and not settings.key_file:
        # With an operations port they are there; with keys they are for nobody who has only one of these.
        app.router.add_get("/metrics", scrape_metrics)
    return app


def _routes(prefix: str) -> list[web.RouteDef]:
    return [
        web.post(f"{prefix}/chat/completions", completions.create_chat_completion, expect_handler=expect_later),
        web.post(f"{prefix}/completions", completions.create_completion, expect_handler=expect_later),
        web.get(f"{prefix}/models", models.list_models),
        web.get(f"{prefix}/models/{{id:.+}}", models.get_model),
        web.post(f"{prefix}/tokenize", tokenization.tokenize, expect_handler=expect_later),
        web.post(f"{prefix}/detokenize", tokenization.detokenize, expect_handler=expect_later),
        web.get(f"{prefix}/version", description.version),
    ]


async def _observer_lifetime(app: web.Application) -> AsyncIterator[None]:
    tracer = open_tracer(app[SETTINGS].otlp_endpoint)
    app[OBSERVER] = Observer(app[SETTINGS], tracer)
    yield
    if tracer is not None:
        await asyncio.to_thread(tracer.close)


@web.middleware
async def log_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Write one line of each request."""
    facts = request[FACTS] = RequestFacts(request_id=_request_id(request), started_at=time.monotonic())
    facts.label(_callers(request))
    observer = request.app[OBSERVER]
    if observer.tracer is not None:
        observer.tracer.begin(facts, request.headers)
    status = CLIENT_CLOSED_REQUEST
    try:
        response = await handler(request)
        status = response.status if facts.error_code != CLIENT_CLOSED else CLIENT_CLOSED_REQUEST
        return response
    finally:
        if status == CLIENT_CLOSED_REQUEST:
            facts.error_code = CLIENT_CLOSED
        _ended(request, facts, status)


def _ended(request: web.Request, facts: RequestFacts, status: int) -> None:
    if facts.num_held_bytes:
        request.app[LARGE_BODIES].give_back(facts.num_held_bytes)
    request.app[OBSERVER].ended(
        facts,
        method=request.method,
        path=request.rel_url.raw_path,
        endpoint=_endpoint(request),
        status=status,
        level=logging.DEBUG if request.path.startswith(("/health", "/metrics")) else logging.INFO,
    )


def _endpoint(request: web.Request) -> str:
    """Return the route: a few words, whatever clients ask for."""
    resource = request.match_info.route.resource
    return UNKNOWN if resource is None else resource.canonical


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what is raised with its status and the error envelope."""
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
    request[FACTS].fail(error)
    return json_response(error.envelope(), status=error.status, headers=error.headers)


def _error_from_http(request: web.Request, exc: web.HTTPException) -> APIError:
    """Return aiohttp's own refusals in our words."""
    match exc:
        case web.HTTPMethodNotAllowed():
            return MethodNotAllowed(f"{request.method} is not allowed for {request.path}", exc.allowed_methods)
        case web.HTTPNotFound():
            other = _OTHER_CHAT_APIS.fullmatch(request.path)
            hint = f": use {other['root']}/chat/completions" if other else ""
            return NotFound(f"There is no {request.method} {request.path}{hint}")
        case web.HTTPRequestEntityTooLarge():
            limit = request.app[SETTINGS].max_body_bytes
            return RequestTooLarge(f"The body is longer than {limit} bytes")
        case _:
            error = InvalidRequest(HTTPStatus(exc.status).phrase)
            error.status = exc.status
            return error


async def name_request(request: web.Request, response: web.StreamResponse) -> None:
    """Put into an answer's headers what it is known by."""
    response.headers["Server"] = SERVER
    if FACTS not in request:
        return
    facts = request[FACTS]
    if is_draining(request.app):
        response.force_close()  # the next request must find another server
        response.headers["Connection"] = "close"  # aiohttp has written this header before
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
