"""Shared by all handlers: the application's keys, and the facts of one request.

`GATE`, `DRAIN`, `NOTE_CALLER`, `KEYS` and `LIMITS` belong to the gateway. An application without a gateway lacks them
and serves every request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakValueDictionary

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.caller import ANONYMOUS, Caller
from frontend.errors import (
    APIError,
    Draining,
    ModelNotFound,
    ModelNotReady,
    PermissionDenied,
    ServerError,
    shown,
)
from frontend.protocol.fields import QueuedBody
from frontend.settings import Settings
from frontend.stream_record import StreamRecord
from frontend.triton.leases import Hold
from frontend.triton.models import ModelDirectory, ModelName
from frontend.triton.pool import ReplicaPool
from model_repository.contract.output import Chunk
from model_repository.contract.request import GenerationRequest

logger = logging.getLogger(__name__)

SETTINGS = web.AppKey("settings", Settings)
TRITON = web.AppKey("triton", ReplicaPool)
MODELS = web.AppKey("models", ModelDirectory)
SENDER_LOCKS: web.AppKey[WeakValueDictionary[str, asyncio.Lock]] = web.AppKey("sender_locks")
IS_PUBLIC = web.AppKey("is_public", bool)  # the API, in contrast to the operations port


# Calls the handler of a request that may pass.
type Gate = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


class DrainControl(Protocol):
    """Stops the server: new requests are refused, requests in flight may finish."""

    is_draining: bool

    def begin(self) -> None:
        """Refuse new requests from now on."""

    def __enter__(self) -> None:
        """Count work in flight until the end of the block.

        Raises:
            Draining: the drain has begun.
        """

    def __exit__(self, *exception: object) -> None: ...

    async def finish(self, timeout_s: float, hurry: asyncio.Event, end_all: Callable[[Draining], int]) -> None:
        """Drain, and return once no request is in flight. The timeout or `hurry` ends the rest."""


class KeyControl(Protocol):
    """The API keys of the key file, for the admin routes."""

    @property
    def num_keys(self) -> int:
        """Number of keys in the file."""

    @property
    def owners(self) -> dict[str, str]:
        """The owners of what is stored for the keys, to the names of the keys."""

    def reload(self) -> None:
        """Read the file if it has changed.

        Raises:
            SettingsError: the file cannot be read, or breaks a rule. The old keys stay.
        """

    def reload_or_log(self) -> None:
        """Read the file if it has changed; log a failure and keep the old keys."""


class Chunks(AsyncIterable[tuple[int, Chunk]], Protocol):
    """Chunks, each with the index of its completion."""

    async def __anext__(self) -> tuple[int, Chunk]: ...

    async def aclose(self) -> None:
        """Leave them."""


class Admitted(Protocol):
    """A request that may run, until the end of the block."""

    generations: Sequence[GenerationRequest]
    hold: Hold  # on its model

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def running(self, index: int, generation: GenerationRequest) -> AbstractAsyncContextManager[Chunks]:
        """Return the chunks of a completion; entering them waits for its model and its place, leaving cancels it."""


class LimitControl(Protocol):
    """Applies the limits of keys and models."""

    async def admit(
        self,
        request: web.Request,
        body: QueuedBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
        hold: Hold,
        *,
        is_background: bool,
    ) -> Admitted:
        """Admit the completions of a request, and charge their tokens when it ends. It releases the hold.

        Args:
            is_background: the first completion waits for its place when its chunks are read, as the others do.
        """

    async def count_request(self, request: web.Request, model: str) -> None:
        """Charge a request without completions."""


# Notes the caller of work that another process has begun, by the owner of what it stores; raises AuthenticationFailed.
type NoteCaller = Callable[[web.Request, str], None]

GATE: web.AppKey[Gate] = web.AppKey("gate")
DRAIN: web.AppKey[DrainControl] = web.AppKey("drain")
NOTE_CALLER: web.AppKey[NoteCaller] = web.AppKey("note_caller")
KEYS: web.AppKey[KeyControl] = web.AppKey("keys")  # missing without a key file
LIMITS: web.AppKey[LimitControl] = web.AppKey("limits")
# Variables that workers inherit: the Unix sockets of the admission process.
LIMITS_SOCKET = "CONCH_LIMITS_SOCKET"
STORE_SOCKET = "CONCH_STORE_SOCKET"  # missing: what is stored is not in memory

CLIENT_CLOSED = "client_closed"  # error code of a request whose client hung up, for the log and metrics
CLIENT_CLOSED_REQUEST = 499  # its status
_MAX_LABEL = 256  # characters of one label in the log


@dataclass(slots=True)
class RequestFacts:
    """One request, for its log line, metrics and trace; filled in while it is served."""

    request_id: str
    started_at: float  # time.monotonic()
    num_body_bytes: int = 0
    num_reserved_bytes: int = 0  # its share of the memory for large bodies
    num_answer_bytes: int = 0  # its share of the memory for large answers
    num_kept_bytes: int = 0  # of its answer so far
    is_in_flight: bool = False  # metrics count it so
    is_costly: bool = False  # its body has many bytes or values
    id: str = "-"  # the completion's
    model: str = "-"  # the name that the client used
    served_model: str = "unknown"  # the model's id
    error: APIError | None = None  # raised before or after the status
    error_code: str | None = None
    labels: dict[str, str] = field(default_factory=dict)  # the client's, for the log
    caller: Caller = ANONYMOUS
    stream: StreamRecord | None = None  # None: the request does not generate
    span: Any = None  # OpenTelemetry's, if traced
    trace_id: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request's arrival to its first chunk; None: no chunk has come."""
        first_s = None if self.stream is None else self.stream.first_s
        return None if first_s is None else first_s - self.started_at

    def fail(self, error: APIError) -> None:
        """Note the error that ends the request."""
        self.error, self.error_code = error, error.code
        # Tracebacks keep a refused body in memory until the next garbage collection.
        error.__traceback__ = error.__cause__ = error.__context__ = None

    def label(self, labels: Mapping[str, Any]) -> None:
        """Add labels for the log. Persons appear as hashes."""
        for name, value in labels.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            is_person = name in ("user", "safety_identifier")
            self.labels[name] = hashlib.sha256(text.encode()).hexdigest()[:16] if is_person else text[:_MAX_LABEL]


FACTS = web.RequestKey("facts", RequestFacts)


def sender_of(request: web.Request) -> str:
    """Return the name of the sender: the id of its key, or its address if the server has no keys."""
    caller = request[FACTS].caller
    return request.remote or "" if caller.id == ANONYMOUS.id else caller.id


def lock_of_sender(request: web.Request) -> asyncio.Lock:
    """Return the sender's lock, for work that delays all senders: each sender does one piece at a time."""
    return request.app[SENDER_LOCKS].setdefault(sender_of(request), asyncio.Lock())


def is_draining(app: web.Application) -> bool:
    """Whether the server refuses new requests because it stops."""
    drain = app.get(DRAIN)
    return drain is not None and drain.is_draining


async def find_model(request: web.Request, requested: str) -> ModelName:
    """Return the model that the client names.

    Raises:
        PermissionDenied: the key does not allow the model. The error is the same for models that do not exist.
        APIError: no model has this name, or it is not ready.
    """
    facts, models = request[FACTS], request.app[MODELS]
    facts.model = requested
    try:
        name = await models.get(requested)
    except (ModelNotFound, ModelNotReady) as exc:
        known = models.known(requested)
        if not facts.caller.may_use(known):
            raise _not_allowed(requested) from None
        if isinstance(exc, ModelNotReady):
            facts.served_model = known.model_id  # metrics count the demand
            raise
        raise ModelNotFound(requested, facts.caller.visible(await models.names())) from None
    if not facts.caller.may_use(name):
        raise _not_allowed(requested)
    facts.served_model = name.model.id
    return name


def _not_allowed(model: str) -> PermissionDenied:
    return PermissionDenied(f"model={shown(model)}: the API key does not allow it", param="model")


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def unexpected(exc: Exception, facts: RequestFacts) -> APIError:
    """Log an unexpected exception, and return a bare 500 for the client."""
    logger.error("unexpected exception while serving request_id=%s", facts.request_id, exc_info=exc)
    return ServerError()
