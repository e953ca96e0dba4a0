"""The HTTP application: routes, middleware, lifetimes."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from weakref import WeakValueDictionary

from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.connections.connection import leave_packed_body
from frontend.connections.refusals import SERVER, refusal
from frontend.endpoints import ENDPOINTS
from frontend.errors import APIError, InvalidRequest, MethodNotAllowed, NotFound, RequestTooLarge
from frontend.gateway.install import install_gateway
from frontend.handlers.background import background_lifetime
from frontend.handlers.bodies import LARGE_BODIES, MAX_LARGEST, LargeBodies
from frontend.handlers.documents import DOCUMENT_TURNS, DocumentTurns
from frontend.handlers.fetching import fetcher
from frontend.handlers.large_answers import LARGE_ANSWERS, LargeAnswers, release_memory
from frontend.handlers.models import is_for_anthropic
from frontend.handlers.stored import store_lifetime
from frontend.handlers.summaries import SUMMARIES, Summaries
from frontend.reference.openapi import openapi
from frontend.request_context import (
    CLIENT_CLOSED,
    CLIENT_CLOSED_REQUEST,
    FACTS,
    GATE,
    IS_PUBLIC,
    MODELS,
    SENDER_LOCKS,
    SETTINGS,
    TRITON,
    RequestFacts,
    is_draining,
    json_response,
    unexpected,
)
from frontend.settings import Settings
from frontend.telemetry import scrape
from frontend.telemetry.observer import OBSERVER, Observer
from frontend.telemetry.tracing import open_tracer
from frontend.translate.message_reply import message_error, message_error_head
from frontend.triton.channel import triton_credentials
from frontend.triton.client import TritonClient
from frontend.triton.discovery import DnsDiscovery, discovering, host_of
from frontend.triton.endpoints import ANY_MODEL, DNS_PREFIX, Endpoints, ModelFilter
from frontend.triton.models import ModelDirectory
from frontend.triton.pool import ReplicaPool
from frontend.triton.replica import Replica

_CALLERS = {"organization": "OpenAI-Organization", "project": "OpenAI-Project"}
_HEADER_WORD = re.compile(r"[!-~]{1,128}")  # printable ASCII
# Paths of other APIs to what to use.
_OTHER_APIS = (
    (re.compile("/v1(/v1)+/.*"), "a base URL with one /v1"),
    (re.compile("/api/(chat|generate)"), "/v1/chat/completions"),
    (re.compile("/api/(tags|ps|show)"), "/v1/models"),
    (re.compile("/api/version"), "/version"),
)
_OF_ANTHROPIC = re.compile(r"(?!.*/(models|completions)/).*/messages(/.*)?")  # their errors have Anthropic's form


def create_app(
    settings: Settings,
    tritons: Mapping[str, TritonClient] | None = None,
    tell_others: Callable[[], None] = lambda: None,
) -> web.Application:
    """Return the application.

    Args:
        settings: the settings.
        tritons: by endpoint; replaces connections to the endpoints of the settings.
        tell_others: called when the drain begins, to drain the other processes on the port.
    """
    app = web.Application(client_max_size=settings.max_body_bytes, middlewares=[serve_request])
    app[SETTINGS], app[IS_PUBLIC] = settings, True
    app[SENDER_LOCKS] = WeakValueDictionary()
    app[LARGE_BODIES] = LargeBodies(MAX_LARGEST * settings.max_body_bytes, settings.max_body_bytes)
    app[LARGE_ANSWERS] = LargeAnswers()
    app[DOCUMENT_TURNS] = DocumentTurns()
    app[SUMMARIES] = Summaries()

    async def replicas_lifetime(app: web.Application) -> AsyncIterator[None]:
        observer, credentials, key = app[OBSERVER], triton_credentials(settings), settings.triton_key
        endpoints = Endpoints.parse(settings.triton_endpoints)

        def connect(endpoint: str, model_filter: ModelFilter, *, name: str = "") -> Replica:
            name = settings.triton_tls_name or name
            triton = tritons[endpoint] if tritons else TritonClient(endpoint, credentials, name, model_filter, key)
            on_checked = partial(observer.note_engine, endpoint)
            return Replica(endpoint, triton, settings, on_checked=on_checked, model_filter=model_filter)

        pool = ReplicaPool(
            [],
            observer.forget,
            expected=endpoints.expected,
            is_complete=endpoints.is_complete,
            load_wait_s=settings.load_wait_s,
            wake_timeout_s=settings.wake_timeout_s,
            resume_within_s=settings.resume_within_s,
            key=key,
        )
        discoveries = []
        for endpoint, named_for in (dict.fromkeys(tritons, (ANY_MODEL,)) if tritons else endpoints.models).items():
            if endpoint.startswith(DNS_PREFIX):
                discoveries.append(DnsDiscovery(endpoint, named_for, pool, partial(connect, name=host_of(endpoint))))
            else:
                pool.add(endpoint, named_for, connect)
        app[TRITON], app[MODELS] = pool, ModelDirectory(pool, aliases=endpoints.aliases, is_served=pool.serves)
        async with pool.running(), discovering(discoveries):
            yield
        await pool.close()

    app.cleanup_ctx.extend([_observer_lifetime, store_lifetime, replicas_lifetime, fetcher])
    app.on_response_prepare.extend([leave_packed_body, name_request])
    install_gateway(app, tell_others)
    app.cleanup_ctx.append(background_lifetime)
    for endpoint in ENDPOINTS:
        app.router.add_routes(endpoint.routes(settings.root_paths))
    app.router.add_get("/openapi.json", openapi)
    if settings.picker_metrics:
        app.router.add_get("/metrics", scrape.picker_metrics)
    elif not settings.admin_port and not settings.key_file:
        # With an operations port the metrics are there. A key is for the API, not for metrics.
        app.router.add_get("/metrics", scrape.metrics)
    return app


async def _observer_lifetime(app: web.Application) -> AsyncIterator[None]:
    tracer = open_tracer(app[SETTINGS].otlp_endpoint)
    observer = app[OBSERVER] = Observer(app[SETTINGS], tracer)
    yield
    observer.metrics.flush()
    if tracer is not None:
        await asyncio.to_thread(tracer.close)


@web.middleware
async def serve_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request, also one that fails, and write one log line for it."""
    facts = request[FACTS] = RequestFacts(request_id=_request_id(request), started_at=time.monotonic())
    facts.label(_callers(request))
    app = request.app
    observer, gate = app[OBSERVER], app.get(GATE)
    if observer.tracer is not None:
        observer.tracer.begin(facts, request.headers)
    status = CLIENT_CLOSED_REQUEST
    try:
        try:
            response = await (handler(request) if gate is None else gate(request, handler))
        except Exception as exc:
            response = _failure(request, exc)
        status = response.status if facts.error_code != CLIENT_CLOSED else CLIENT_CLOSED_REQUEST
        return response
    finally:
        if status == CLIENT_CLOSED_REQUEST:
            facts.error_code = CLIENT_CLOSED
        release_memory(request)
        observer.end_request(request, status)


def _failure(request: web.Request, exc: Exception) -> web.Response:
    """Return the answer to a request that failed: the error envelope, with its status."""
    facts = request[FACTS]
    match exc:
        case APIError():
            error = exc
        case web.RequestPayloadError():
            error = refusal(exc.__cause__)
        case web.HTTPException():
            error = _error_from_http(request, exc)
        case _:
            error = unexpected(exc, facts)
    facts.fail(error)
    if _OF_ANTHROPIC.fullmatch(request.path) or (is_for_anthropic(request) and "/models" in request.path):
        status, headers = message_error_head(error, facts.request_id)
        return json_response(message_error(error, facts.request_id), status=status, headers=headers)
    return json_response(error.envelope(), status=error.status, headers=error.headers)


def _error_from_http(request: web.Request, exc: web.HTTPException) -> APIError:
    """Return aiohttp's refusal as an error of ours."""
    match exc:
        case web.HTTPMethodNotAllowed():
            return MethodNotAllowed(f"{request.method} is not allowed for {request.path}", exc.allowed_methods)
        case web.HTTPNotFound():
            ours = next((path for others, path in _OTHER_APIS if others.fullmatch(request.path)), None)
            hint = f": use {ours}" if ours else ""
            return NotFound(f"There is no {request.method} {request.path}{hint}")
        case web.HTTPRequestEntityTooLarge():
            limit = request.app[SETTINGS].max_body_bytes
            return RequestTooLarge(f"The body is longer than {limit} bytes")
        case _:
            error = InvalidRequest(HTTPStatus(exc.status).phrase)
            error.status = exc.status
            return error


async def name_request(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer has."""
    headers, app, facts = response.headers, request.app, request.get(FACTS)
    headers["Server"] = SERVER
    if facts is None:
        return
    if is_draining(app):
        response.force_close()  # the next request must find another server
        headers["Connection"] = "close"  # aiohttp sets this header before the signal
    if response.keep_alive and headers.get("Connection") != "close":
        headers["Keep-Alive"] = f"timeout={int(app[SETTINGS].idle_timeout_s)}"
    headers["x-request-id"] = facts.request_id
    headers["openai-processing-ms"] = f"{(time.monotonic() - facts.started_at) * 1000:.0f}"
    if "organization" in facts.labels:
        headers["openai-organization"] = facts.labels["organization"]


def _request_id(request: web.Request) -> str:
    """Return the client's id of the request if it fits a log line and a header, else a new id."""
    given = request.headers.get("x-request-id", "")
    return given if _HEADER_WORD.fullmatch(given) else f"req_{secrets.token_hex(16)}"


def _callers(request: web.Request) -> dict[str, str]:
    """Return the organization and the project from the headers of OpenAI's clients."""
    given = {name: request.headers.get(header) for name, header in _CALLERS.items()}
    return {name: value for name, value in given.items() if value and _HEADER_WORD.fullmatch(value)}
