"""What the handlers share: where the application keeps things, and what is known of a request."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson
from aiohttp import web

from frontend.engine_watch import EngineWatch
from frontend.errors import APIError, ServerError
from frontend.models import ModelDirectory, ModelName, Triton
from frontend.protocol.body import Body
from frontend.protocol.reading import parse
from frontend.settings import Settings
from model_repository.generation import GenerationChunk

logger = logging.getLogger(__name__)

SETTINGS = web.AppKey("settings", Settings)
TRITON = web.AppKey("triton", Triton)
MODELS = web.AppKey("models", ModelDirectory)
WATCH = web.AppKey("watch", EngineWatch)

CLIENT_CLOSED = "client_closed"  # the error code, in the log only, of a request whose client hung up
MAX_IGNORED_PARAMS = 32  # in the header that lists them
_MAX_LABEL = 256  # characters of what a client wants in the log


@dataclass(slots=True)
class RequestFacts:
    """What the log line of a request says; filled in while it is served."""

    request_id: str
    started_at: float  # time.monotonic()
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

    def saw(self, index: int, chunk: GenerationChunk) -> None:
        """Note what a chunk of a completion says; of the completions of one prompt, the first counts it."""
        if self.ttft_ms is None:
            self.ttft_ms = (time.monotonic() - self.started_at) * 1000
        self.num_chars += len(chunk.text)
        if chunk.usage is not None:
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


async def read_body[Request: Body](request: web.Request, model: type[Request]) -> tuple[Request, dict[str, str]]:
    """Return the checked body, and the header that lists the names in it that nobody knows.

    Raises:
        APIError: it breaks a rule.
    """
    body, unknown = parse(model, await request.read(), request.app[SETTINGS])
    return body, {"x-ignored-params": _ignored_params(unknown)} if unknown else {}


async def find_model(request: web.Request, asked: str) -> ModelName:
    """Note the model's name, as the client has it, and return what it stands for.

    Raises:
        APIError: nothing is served by that name, or not now.
    """
    request[FACTS].model = asked
    return await request.app[MODELS].get(asked)


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def unexpected(exc: Exception, facts: RequestFacts) -> APIError:
    """Log an exception that nobody foresaw; return what the client may know of it."""
    logger.error("unexpected exception while serving request_id=%s", facts.request_id, exc_info=exc)
    return ServerError()


def _ignored_params(names: list[str]) -> str:
    """Return the names that nobody knows as a header: whatever a client calls its fields, it stays one short line."""
    shown = [quote(name[:64], safe="[].") for name in names[:MAX_IGNORED_PARAMS]]
    return ",".join(shown + ["..."] * (len(names) > MAX_IGNORED_PARAMS))
