"""What the handlers share: where the application keeps things, and what is known of a request.

`DRAIN`, `KEYS` and `LIMITS` belong to the gateway. An application without a gateway lacks them and serves every
request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from aiohttp import web

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
from frontend.protocol.fields import GenerationBody
from frontend.settings import Settings
from frontend.stream_record import StreamRecord
from frontend.triton.models import ModelDirectory, ModelName
from frontend.triton.pool import ReplicaPool
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest

logger = logging.getLogger(__name__)

SETTINGS = web.AppKey("settings", Settings)
TRITON = web.AppKey("triton", ReplicaPool)
MODELS = web.AppKey("models", ModelDirectory)
IS_PUBLIC = web.AppKey("is_public", bool)  # the API, in contrast to the operations port


class DrainControl(Protocol):
    """How the server stops: no new requests, while those in flight may finish."""

    is_draining: bool

    def begin(self) -> None:
        """Refuse new requests from now on."""

    async def finish(self, timeout_s: float, hurry: asyncio.Event, end_all: Callable[[Draining], int]) -> None:
        """Begin, and return once no request is in flight: after the timeout, or when hurried, they are ended."""


class KeyControl(Protocol):
    """The API keys of the key file, as an administrator sees them."""

    @property
    def num_in_file(self) -> int:
        """How many keys the file has."""

    def reload(self) -> None:
        """Read the file if it has changed.

        Raises:
            SettingsError: the file cannot be read, or breaks a rule; the old keys stay.
        """

    def reload_or_log(self) -> None:
        """Read the file if it has changed; log a failure and keep the old keys."""


class LimitControl(Protocol):
    """Holds requests to the limits of their keys and models."""

    def generating(
        self,
        request: web.Request,
        body: GenerationBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
    ) -> AbstractAsyncContextManager[Sequence[GenerationRequest]]:
        """Hold a place for a request's completions, and charge what they used, however the request ends."""

    async def count_request(self, request: web.Request, model: str) -> None:
        """Charge a request that generates nothing."""


DRAIN: web.AppKey[DrainControl] = web.AppKey("drain")
KEYS: web.AppKey[KeyControl] = web.AppKey("keys")  # missing also where there is no key file
LIMITS: web.AppKey[LimitControl] = web.AppKey("limits")

CLIENT_CLOSED = "client_closed"  # the error code, in the log only, of a request whose client hung up
_MAX_LABEL = 256  # characters of what a client wants in the log


@dataclass(slots=True)
class RequestFacts:
    """What the log line of a request says; filled in while it is served."""

    request_id: str
    started_at: float  # time.monotonic()
    num_body_bytes: int = 0
    num_held_bytes: int = 0  # of memory, for a large body
    id: str = "-"  # of the completion
    model: str = "-"
    num_per_prompt: int = 1  # completions that are drawn of each prompt
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0  # completions that came to their end
    num_chars: int = 0  # of text
    ttft_ms: float | None = None
    error_code: str | None = None  # of an error that came after the status
    labels: dict[str, str] = field(default_factory=dict)  # what the client wants to find again
    caller: Caller = ANONYMOUS
    # For metrics, log and traces.
    served_model: str = "unknown"  # the id of what `model` stands for
    error: APIError | None = None  # that it ended with, before or after the status
    stream: StreamRecord | None = None  # once it generates
    span: Any = None  # OpenTelemetry's, where it is traced
    trace_id: str = ""  # likewise

    def fail(self, error: APIError) -> None:
        """Note the error that it ends with."""
        self.error, self.error_code = error, error.code
        # They would keep what a refused body was made into until the garbage collector comes by.
        error.__traceback__ = error.__cause__ = error.__context__ = None

    def saw(self, index: int, chunk: GenerationChunk) -> None:
        """Note what a chunk of a completion says; of the completions of one prompt, the first counts it.

        Raises:
            StreamBroken: it says what no stream may say: it must not be passed on.
        """
        if self.stream is not None:
            self.stream.saw(index, chunk)
        if self.ttft_ms is None:
            self.ttft_ms = (time.monotonic() - self.started_at) * 1000
        self.num_chars += len(chunk.text)
        if chunk.finish_reason is not None and chunk.usage is not None:
            self.num_finished += 1
            self.num_input_tokens += 0 if index % self.num_per_prompt else chunk.usage.num_input_tokens
            self.num_output_tokens += chunk.usage.num_output_tokens

    def label(self, labels: Mapping[str, Any]) -> None:
        """Note what the client wants in the log. People are told apart there, not named."""
        for name, value in labels.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            is_person = name in ("user", "safety_identifier")
            self.labels[name] = hashlib.sha256(text.encode()).hexdigest()[:16] if is_person else text[:_MAX_LABEL]


FACTS = web.RequestKey("facts", RequestFacts)


def is_draining(app: web.Application) -> bool:
    """Return whether the server stops, so that it takes no new requests."""
    return DRAIN in app and app[DRAIN].is_draining


async def find_model(request: web.Request, asked: str) -> ModelName:
    """Note the model's name, as the client has it, and return what it stands for.

    Raises:
        PermissionDenied: the caller's key does not allow it; whether there is such a model, it does not tell.
        APIError: nothing is served by that name, or not now.
    """
    facts, models = request[FACTS], request.app[MODELS]
    facts.model = asked
    try:
        name = await models.get(asked)
    except (ModelNotFound, ModelNotReady) as exc:
        known = models.known(asked)
        if not facts.caller.may_use(known):
            raise _not_allowed(asked) from None
        if isinstance(exc, ModelNotReady):
            facts.served_model = known.model_id  # so that it can be counted that somebody wants it
        raise
    if not facts.caller.may_use(name):
        raise _not_allowed(asked)
    facts.served_model = name.model.id
    return name


def _not_allowed(model: str) -> PermissionDenied:
    return PermissionDenied(f"model={shown(model)}: the API key does not allow it", param="model")


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def unexpected(exc: Exception, facts: RequestFacts) -> APIError:
    """Log an exception that nobody foresaw; return what the client may know of it."""
    logger.error("unexpected exception while serving request_id=%s", facts.request_id, exc_info=exc)
    return ServerError()
