"""How a request is held to its limits: what it asks for, and what it is charged in the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
from aiohttp import web

from frontend.caller import ANONYMOUS
from frontend.errors import UnsupportedValue, shown
from frontend.gateway.headers import rate_headers
from frontend.gateway.policy import Policy, limiter_of
from frontend.gateway.types import Ask, Lease, Limiter, RateLimits
from frontend.protocol.fields import GenerationBody
from frontend.protocol.priority import Priority
from frontend.request_context import CLIENT_CLOSED, FACTS, SETTINGS, TRITON, RequestFacts
from frontend.telemetry.observer import OBSERVER
from frontend.triton.models import ModelName
from model_repository.generation import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt

LIMITER: web.AppKey[Limiter] = web.AppKey("limiter")
_POLICY = web.AppKey("policy", Policy)
_LEASE = web.RequestKey("lease", Lease)

_ENGINE_PRIORITIES = {Priority.HIGH: -1, Priority.NORMAL: 0, Priority.LOW: 1}
_BYTES_PER_TOKEN = 3  # of text, when nothing has counted it yet: few tokenizers make more tokens of it


async def limits_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Keep the limits for as long as the application runs."""
    app[_POLICY] = Policy(app[SETTINGS])
    app[LIMITER] = limiter_of(app[SETTINGS])
    yield
    await app[LIMITER].close()


async def add_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say the state of the caller's limits in the answer, whatever it is."""
    if _LEASE in request:
        response.headers.update(rate_headers(request[_LEASE].readings))


@asynccontextmanager
async def generating(
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
    facts, limiter = request[FACTS], request.app[LIMITER]
    key, rates, max_priority = _caller(request)
    window = name.model.context_window
    num_prompt_tokens = sum(_num_tokens(each.prompt, window) for each in generations[::num_per_prompt])
    max_tokens = min(generations[0].max_tokens, window)
    ask = Ask(
        key=key,
        scopes=request.app[_POLICY].scopes(key, rates, name.model.id),
        model=name.model.id,
        num_tokens=num_prompt_tokens + len(generations) * max_tokens,
        num_sequences=len(generations),
        num_prompt_tokens=num_prompt_tokens,
        num_replicas=max(1, request.app[TRITON].num_ready(name.model.slug)),
        max_sequences=name.model.parameters.max_sequences,
        priority=_allowed_priority(body, max_priority),
    )
    sender = key if key != ANONYMOUS.id else request.remote or ""
    with request.app[OBSERVER].in_flight(name.model.id):  # waiting requests count as demand too
        lease = request[_LEASE] = await limiter.acquire(ask)
        num_tokens = ask.num_tokens  # an aborted request without streaming: usage unknown, so charge the estimate
        try:
            yield [replace(each, priority=_ENGINE_PRIORITIES[ask.priority], sender=sender) for each in generations]
            if generations[0].is_stream or facts.error_code != CLIENT_CLOSED:
                num_tokens = _num_tokens_used(facts, ask)
        except asyncio.CancelledError:
            if generations[0].is_stream:
                num_tokens = _num_tokens_used(facts, ask)
            raise
        except Exception:
            num_tokens = _num_tokens_used(facts, ask) if facts.ttft_ms is not None else 0  # it was never generated
            raise
        finally:
            limiter.release(lease, num_tokens)


async def count_request(request: web.Request, model: str) -> None:
    """Charge a request that generates nothing.

    Raises:
        RateLimited: a limit of the key's own is reached.
    """
    key, rates, _ = _caller(request)
    scopes = request.app[_POLICY].scopes(key, rates, model)
    if scopes:
        lease = request[_LEASE] = await request.app[LIMITER].acquire(Ask(key=key, scopes=scopes))
        request.app[LIMITER].release(lease, 0)


def _caller(request: web.Request) -> tuple[str, RateLimits, Priority]:
    """Return who asks, and what the key may use; where it does not say, what the settings say."""
    default = request.app[_POLICY].default_rates
    most = Priority(request.app[SETTINGS].max_priority)
    caller = request[FACTS].caller
    limits = caller.limits
    rates = RateLimits(
        requests_per_minute=limits.requests_per_minute or default.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute or default.tokens_per_minute,
        max_concurrent=limits.max_concurrent or default.max_concurrent,
    )
    if limits.max_priority is not None:
        most = Priority.HIGH if limits.max_priority else Priority.NORMAL
    return caller.id, rates, most


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


def _num_tokens_used(facts: RequestFacts, ask: Ask) -> int:
    """Return what was generated: by the engine's counts where a completion came to its end, else by the text."""
    if facts.num_finished == ask.num_sequences:
        return facts.num_input_tokens + facts.num_output_tokens
    num_streamed = math.ceil(facts.num_chars / _BYTES_PER_TOKEN)
    return max(facts.num_input_tokens, ask.num_prompt_tokens) + max(facts.num_output_tokens, num_streamed)
