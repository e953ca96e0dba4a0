"""The limits of requests over HTTP: an estimate is charged before a request runs, its real usage at the end."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import Self

import orjson
from aiohttp import web
from msgspec.structs import replace

from frontend.caller import ANONYMOUS, KeyRole
from frontend.errors import CannotContinue, UnsupportedValue, shown
from frontend.gateway.authentication import KEY_LIMITS
from frontend.gateway.charge import Charge, Outcome
from frontend.gateway.headers import rate_headers
from frontend.gateway.limiter import LocalLimiter, local_limiter
from frontend.gateway.outage import OnFailure, Outage
from frontend.gateway.policy import Policy
from frontend.gateway.shared_limiter import SharedLimiter
from frontend.gateway.types import AdmissionRequest, Lease, RateLimits
from frontend.protocol.fields import QueuedBody
from frontend.protocol.priority import Priority
from frontend.request_context import (
    FACTS,
    LIMITS,
    LIMITS_SOCKET,
    SETTINGS,
    TRITON,
    Chunks,
    sender_of,
)
from frontend.settings import Settings
from frontend.triton.generating import Generating
from frontend.triton.leases import Hold
from frontend.triton.models import ModelName
from model_repository.contract.output import Usage
from model_repository.contract.request import ChatPrompt, GenerationRequest, PairPrompt, Prompt, TextPrompt, TokenPrompt
from model_repository.contract.rules import num_kept_tokens
from model_repository.model_facts import Task

_LEASE = web.RequestKey("lease", Lease)

_ENGINE_PRIORITIES = {Priority.HIGH: -1, Priority.NORMAL: 0, Priority.LOW: 1}
# Tokens of a completion without a limit: the estimate before any has ended, and the weight of each that ends.
_FIRST_LENGTH, _WEIGHT = 512.0, 0.1
# By which clients name a conversation: OpenCode and others, Codex, Claude Code, and clients of Dynamo.
_SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id", "x-dynamo-session-id")
_BYTES_PER_TOKEN = 3  # an estimate for text; few tokenizers make more tokens of it


async def limits_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Keep the limits while the application runs."""
    limits = app[LIMITS] = Limits(app[SETTINGS])
    yield
    await limits.limiter.close()


async def add_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the state of the caller's limits to every response of a counted request."""
    if _LEASE in request:
        response.headers.update(rate_headers(request[_LEASE].readings))


class Limits:
    """Applies the limits of keys and models to the requests of an application."""

    def __init__(self, settings: Settings) -> None:
        self._policy = Policy(settings)
        self._max_priority = settings.max_priority
        self._mean_lengths: dict[str, float] = {}  # model to tokens of recent completions
        self.limiter: LocalLimiter | SharedLimiter
        if path := os.environ.get(LIMITS_SOCKET):
            outage = Outage("the admission process", OnFailure(settings.limits_on_failure))
            self.limiter = SharedLimiter(path, self._policy.longest_wait_s, outage)
        else:
            self.limiter = local_limiter(settings)

    async def admit(
        self,
        request: web.Request,
        body: QueuedBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
        hold: Hold,
        *,
        is_background: bool = False,
    ) -> Limited:
        """Charge a request, and wait for a place for its first completion.

        Each other completion waits for its place when its chunks are first read, and so does the first one if images
        are still to be fetched, or its model is still to be loaded. A place is free once the engine has no more work
        for its completion. The real usage is charged after the last completion, or at the end of the request.

        Args:
            generations: the completions, grouped by prompt; an image that is still to be fetched is empty.
            num_per_prompt: completions of each prompt.
            hold: on the model.
            is_background: the first completion too waits for its place when its chunks are read.

        Raises:
            APIError: a limit of the key is reached, or the model has no room.
        """
        facts = request[FACTS]
        first, nums_prompt_tokens = self._estimate(request, body, name, generations, num_per_prompt)
        # A place does not wait for images to be fetched, nor for a model to be loaded.
        may_begin = hold.is_ready and all(generations[0].images) and not is_background
        lease = request[_LEASE] = await self.limiter.acquire(first if may_begin else replace(first, model=""))
        if may_begin and hold.requeue():  # its turn has ended while it waited for its place
            self.limiter.leave(lease)
            may_begin = False
        charge = Charge(
            num_estimated=first.num_charged_tokens,
            num_prompt_tokens=sum(nums_prompt_tokens),
            num_completions=len(generations),
            num_per_prompt=num_per_prompt,
            is_stream=generations[0].params.is_stream,
            on_settled=functools.partial(self.limiter.release, lease),
        )
        # One key must not learn from cached tokens, or from the time of an answer, what another key has asked.
        salt = "" if facts.caller.id == ANONYMOUS.id else facts.caller.id
        fields = {"priority": _ENGINE_PRIORITIES[first.priority], "sender": first.sender, "cache_salt": salt}
        group = _group(facts.caller.id, request, body)
        return Limited(
            [replace(each, params=replace(each.params, **fields), group=group) for each in generations],
            limits=self,
            request=request,
            first=first,
            lease=lease if may_begin else None,
            hold=hold,
            charge=charge,
            nums_prompt_tokens=nums_prompt_tokens,
        )

    def count_length(self, model: str, num_tokens: int) -> None:
        """Count a completion that has ended for the estimates of others."""
        mean = self._mean_lengths.get(model, _FIRST_LENGTH)
        self._mean_lengths[model] = mean + _WEIGHT * (num_tokens - mean)

    async def count_request(self, request: web.Request, model: str) -> None:
        """Charge a request that generates nothing, or raise RateLimited."""
        key = request[FACTS].caller.id
        scopes = self._policy.scopes(key, self._rates(request), model)
        if scopes:
            lease = request[_LEASE] = await self.limiter.acquire(AdmissionRequest(sender=key, scopes=scopes))
            self.limiter.release(lease, 0)

    def _estimate(
        self,
        request: web.Request,
        body: QueuedBody,
        name: ModelName,
        generations: Sequence[GenerationRequest],
        num_per_prompt: int,
    ) -> tuple[AdmissionRequest, list[int]]:
        """Return the first completion as the limits see it, and the number of tokens of each prompt."""
        parameters, model = name.model.parameters, name.model_id
        window, max_tokens = parameters.context_window, generations[0].params.max_tokens
        if max_tokens >= window:  # no limit: few completions are as long
            max_tokens = min(window, math.ceil(self._mean_lengths.get(model, _FIRST_LENGTH)))
        nums_prompt_tokens = [
            num_kept_tokens(each.params, _num_tokens(each.prompt, window), window)
            for each in generations[::num_per_prompt]
        ]
        is_generation = parameters.task is Task.GENERATE
        first = AdmissionRequest(
            sender=sender_of(request),
            scopes=self._policy.scopes(request[FACTS].caller.id, self._rates(request), model),
            num_charged_tokens=sum(nums_prompt_tokens) + len(generations) * max_tokens,
            num_completions=len(generations) if is_generation else 1,
            model=model,
            num_tokens=nums_prompt_tokens[0] + max_tokens,
            num_prompt_tokens=nums_prompt_tokens[0],
            num_replicas=max(1, request.app[TRITON].num_ready(model)),
            # A model that ends each request with its step gets those of two steps, or it would wait between them.
            max_sequences=parameters.max_sequences * (1 if is_generation else 2),
            priority=_allowed_priority(body, self._highest_priority(request)),
        )
        return first, nums_prompt_tokens

    def _rates(self, request: web.Request) -> RateLimits:
        """Return the rates of the caller's key; the settings are the default for each of them."""
        own, default = request[KEY_LIMITS], self._policy.default_rates
        if own is None:
            return default
        return RateLimits(
            own.requests_per_minute or default.requests_per_minute,
            own.tokens_per_minute or default.tokens_per_minute,
            own.max_concurrent or default.max_concurrent,
        )

    def _highest_priority(self, request: web.Request) -> Priority:
        """Return the highest priority that the caller's key allows."""
        limits = request[KEY_LIMITS]
        own = None if limits is None else limits.max_priority
        if own is None and self._max_priority:
            return Priority(self._max_priority)
        is_user = limits is not None and request[FACTS].caller.role is KeyRole.USER
        is_high = not is_user if own is None else own > 0
        return Priority.HIGH if is_high else Priority.NORMAL


@dataclass(slots=True, eq=False)
class Limited:
    """A request that is charged, and holds a place; see Admitted."""

    generations: Sequence[GenerationRequest]
    _: KW_ONLY
    limits: Limits
    request: web.Request
    first: AdmissionRequest  # its first completion
    lease: Lease | None  # that holds the place of the first completion; None: it waits for its place, too
    charge: Charge
    nums_prompt_tokens: Sequence[int]  # by prompt
    hold: Hold
    has_begun: bool = False  # a completion has been sent, or is about to be

    def running(self, index: int, generation: GenerationRequest) -> AbstractAsyncContextManager[Chunks]:
        """See Admitted."""
        return _Placed(self, index, generation)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case None:
                outcome = Outcome.ANSWERED
            case CannotContinue():
                outcome = Outcome.EXHAUSTED
            case Exception():
                outcome = Outcome.REFUSED
            case _ if not self.has_begun:
                outcome = Outcome.REFUSED  # it has waited for its model or its place
            case _:
                outcome = Outcome.ABANDONED
        self.hold.release()
        self.charge.settle(outcome, self.request[FACTS].stream)


class _Placed:
    """The chunks of a completion, which has a place while it runs."""

    def __init__(self, admitted: Limited, index: int, generation: GenerationRequest) -> None:
        self._admitted, self._index, self._generation = admitted, index, generation

    async def __aenter__(self) -> Chunks:
        admitted, first, place = self._admitted, self._admitted.first, self._admitted.lease
        triton = admitted.request.app[TRITON]
        if self._index or place is None:
            num = admitted.nums_prompt_tokens[self._index // admitted.charge.num_per_prompt]
            num_tokens = num + first.num_tokens - first.num_prompt_tokens
            own = replace(first, scopes=(), num_tokens=num_tokens, num_prompt_tokens=num, is_first=not self._index)
            place = await self._place_beside(own)
        self._place, admitted.has_begun = place, True
        self._chunks = Generating(triton, first.model, self._generation, self._end, self._index)
        return self._chunks

    async def _place_beside(self, own: AdmissionRequest) -> Lease:
        """Wait for the model, and then for a place. If its turn ends meanwhile, wait for it anew."""
        admitted, limiter = self._admitted, self._admitted.limits.limiter
        while True:
            await admitted.hold.ready()
            if admitted.hold.waited_s:  # its replicas were not loaded at the estimate
                num_ready = admitted.request.app[TRITON].num_ready(own.model)
                own = replace(own, num_replicas=max(1, num_ready))
            place = await limiter.acquire(own)
            if admitted.has_begun or not admitted.hold.requeue():
                return place
            limiter.release(place, 0)

    async def __aexit__(self, *exception: object) -> None:
        limiter = self._admitted.limits.limiter
        try:
            await self._chunks.aclose()
        finally:
            if self._place is self._admitted.lease:
                limiter.leave(self._place)
            else:
                limiter.release(self._place, 0)

    def _end(self, usage: Usage | None) -> None:
        limits = self._admitted.limits
        limits.limiter.leave(self._place)
        if usage is not None:
            limits.count_length(self._admitted.first.model, usage.num_output_tokens)
            self._admitted.charge.used(self._index, usage)


def _group(caller_id: str, request: web.Request, body: QueuedBody) -> str:
    """Return the group of a request, a hash of the name that its client gives to a conversation; empty: none."""
    headers = (request.headers.get(name) for name in _SESSION_HEADERS)
    name = getattr(body, "prompt_cache_key", None) or next(filter(None, headers), None)
    if not name:
        return ""
    return blake2b(f"{caller_id} {name}".encode("utf-8", "replace"), digest_size=8).hexdigest()


def _allowed_priority(body: QueuedBody, highest: Priority) -> Priority:
    """Return the priority of a request. An explicit one above the highest is refused, another one is lowered to it."""
    priority = body.urgency()
    if not priority.is_above(highest):
        return priority
    if not body.priority and body.service_tier in (None, "auto"):
        return highest
    param = "priority" if body.priority else "service_tier"
    rule = f"the highest priority of this key is {highest}"
    raise UnsupportedValue(f"{param}={shown(getattr(body, param))}: {rule}", param=param)


def _num_tokens(prompt: Prompt, context_window: int) -> int:
    """Number of prompt tokens: exact for token ids, estimated for text, messages and tools."""
    match prompt:
        case TokenPrompt(token_ids):
            return len(token_ids)
        case TextPrompt(first, second) | PairPrompt((first, second)):
            longest = _BYTES_PER_TOKEN * context_window  # characters; the context window bounds the estimate
            num_bytes = len(first[:longest].encode()) + len(second[:longest].encode())
        case ChatPrompt(messages, tool_use, template_kwargs):
            if prompt.max_prompt_tokens is not None:
                context_window = min(context_window, prompt.max_prompt_tokens)
            tools = tool_use.tools if tool_use is not None else ()
            num_bytes = len(orjson.dumps((messages, tools, template_kwargs)))
    return min(math.ceil(num_bytes / _BYTES_PER_TOKEN), context_window)
