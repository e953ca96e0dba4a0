"""How a request is held to its limits: what it asks for, and what it is charged in the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from msgspec.structs import replace

from frontend.caller import ANONYMOUS
from frontend.errors import UnsupportedValue, shown
from frontend.gateway.authentication import KEY_LIMITS
from frontend.gateway.headers import rate_headers
from frontend.gateway.key_file import NO_LIMITS
from frontend.gateway.policy import Policy, limiter_of
from frontend.gateway.types import AdmissionRequest, Lease, RateLimits
from frontend.protocol.fields import GenerationBody
from frontend.protocol.priority import Priority
from frontend.request_context import CLIENT_CLOSED, FACTS, LIMITS, SETTINGS, TRITON, RequestFacts
from frontend.settings import Settings
from frontend.triton.models import ModelName
from model_repository.contract.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt

_LEASE = web.RequestKey("lease", Lease)

_ENGINE_PRIORITIES = {Priority.HIGH: -1, Priority.NORMAL: 0, Priority.LOW: 1}
_BYTES_PER_TOKEN = 3  # of text, when nothing has counted it yet: few tokenizers make more tokens of it


async def limits_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Keep the limits for as long as the application runs."""
    limits = app[LIMITS] = Limits(app[SETTINGS])
    yield
    await limits.close()


async def add_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say the state of the caller's limits in the answer, whatever it is."""
    if _LEASE in request:
        response.headers.update(rate_headers(request[_LEASE].readings))


class Limits:
    """Holds the requests of an application to the limits of their keys and models.

    Args:
        settings: the limits of the keys that have none of their own, and those of the models.
    """

    def __init__(self, settings: Settings) -> None:
        self._policy = Policy(settings)
        self._limiter = limiter_of(settings)
        self._max_priority = Priority(settings.max_priority)

    @asynccontextmanager
    async def generating(
        self,
        request: web.Request,
        body: GenerationBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
    ) -> AsyncIterator[list[GenerationRequest]]:
        """Hold a place for a request's completions, and charge what they used, however it ends.

        Yields them with the priority that they have at the engine.

        Args:
            request: the HTTP request.
            body: what it says.
            name: of the model.
            generations: the completions, all those of a prompt after each other.
            num_per_prompt: how many those are.

        Raises:
            APIError: a limit of the key's own is reached, or the model has no room.
        """
        facts = request[FACTS]
        wanted = self._admission_request(request, body, name, generations, num_per_prompt)
        sender = wanted.key if wanted.key != ANONYMOUS.id else request.remote or ""
        lease = request[_LEASE] = await self._limiter.acquire(wanted)
        num_tokens = wanted.num_tokens  # an aborted request without streaming: usage unknown, so charge the estimate
        try:
            priority = _ENGINE_PRIORITIES[wanted.priority]
            yield [replace(each, params=replace(each.params, priority=priority, sender=sender)) for each in generations]
            if generations[0].params.is_stream or facts.error_code != CLIENT_CLOSED:
                num_tokens = _num_tokens_used(facts, wanted)
        except asyncio.CancelledError:
            if generations[0].params.is_stream:
                num_tokens = _num_tokens_used(facts, wanted)
            raise
        except Exception:
            num_tokens = _num_tokens_used(facts, wanted) if facts.ttft_ms is not None else 0  # it was never generated
            raise
        finally:
            self._limiter.release(lease, num_tokens)

    async def count_request(self, request: web.Request, model: str) -> None:
        """Charge a request that generates nothing.

        Raises:
            RateLimited: a limit of the key's own is reached.
        """
        key = request[FACTS].caller.id
        scopes = self._policy.scopes(key, self._rates(request), model)
        if scopes:
            lease = request[_LEASE] = await self._limiter.acquire(AdmissionRequest(key=key, scopes=scopes))
            self._limiter.release(lease, 0)

    async def close(self) -> None:
        """Let go of connections and tasks."""
        await self._limiter.close()

    def _admission_request(
        self,
        request: web.Request,
        body: GenerationBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
    ) -> AdmissionRequest:
        """Return what a request asks of the limits; the arguments are those of `generating`."""
        key, window = request[FACTS].caller.id, name.model.context_window
        num_prompt_tokens = sum(_num_tokens(each.prompt, window) for each in generations[::num_per_prompt])
        max_tokens = min(generations[0].params.max_tokens, window)
        return AdmissionRequest(
            key=key,
            scopes=self._policy.scopes(key, self._rates(request), name.model.id),
            model=name.model.id,
            num_tokens=num_prompt_tokens + len(generations) * max_tokens,
            num_sequences=len(generations),
            num_prompt_tokens=num_prompt_tokens,
            num_replicas=max(1, request.app[TRITON].num_ready(name.model.slug)),
            max_sequences=name.model.parameters.max_sequences,
            priority=_allowed_priority(body, self._highest_priority(request)),
        )

    def _rates(self, request: web.Request) -> RateLimits:
        """Return the rates of the caller's key; those of the settings where the key has none of its own."""
        own, default = request.get(KEY_LIMITS, NO_LIMITS), self._policy.default_rates
        return RateLimits(
            requests_per_minute=own.requests_per_minute or default.requests_per_minute,
            tokens_per_minute=own.tokens_per_minute or default.tokens_per_minute,
            max_concurrent=own.max_concurrent or default.max_concurrent,
        )

    def _highest_priority(self, request: web.Request) -> Priority:
        """Return the highest priority that the caller's key may ask for."""
        own = request.get(KEY_LIMITS, NO_LIMITS).max_priority
        if own is None:
            return self._max_priority
        return Priority.HIGH if own else Priority.NORMAL


def _allowed_priority(body: GenerationBody, most: Priority) -> Priority:
    """Return how urgent a request is; one that does not say is normal, or what its key may be at most.

    Raises:
        UnsupportedValue: more than its key may ask for.
    """
    priority = body.urgency()
    is_explicit = bool(body.priority) or body.service_tier not in (None, "auto")
    if priority.is_above(most) and is_explicit:
        param = "priority" if body.priority else "service_tier"
        rule = f"this key's requests are of {most} priority at most"
        raise UnsupportedValue(f"{param}={shown(getattr(body, param))}: {rule}", param=param)
    return most if priority.is_above(most) else priority


def _num_tokens(prompt: Prompt, context_window: int) -> int:
    """Number of prompt tokens: exact for token ids, estimated for text, messages and tools."""
    match prompt:
        case TokenPrompt(token_ids):
            return len(token_ids)
        case TextPrompt(text, suffix):
            longest = _BYTES_PER_TOKEN * context_window  # characters; the window bounds the estimate
            num_bytes = len(text[:longest].encode()) + len(suffix[:longest].encode())
        case ChatPrompt(messages, tool_use, template_kwargs):
            tools = tool_use.tools if tool_use is not None else ()
            num_bytes = len(orjson.dumps((messages, tools, template_kwargs)))
    return min(math.ceil(num_bytes / _BYTES_PER_TOKEN), context_window)


def _num_tokens_used(facts: RequestFacts, wanted: AdmissionRequest) -> int:
    """Return what was generated: by the engine's counts where a completion came to its end, else by the text."""
    if facts.num_finished == wanted.num_sequences:
        return facts.num_input_tokens + facts.num_output_tokens
    num_streamed = math.ceil(facts.num_chars / _BYTES_PER_TOKEN)
    return max(facts.num_input_tokens, wanted.num_prompt_tokens) + max(facts.num_output_tokens, num_streamed)
