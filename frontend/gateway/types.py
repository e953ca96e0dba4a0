"""Requests to the limits and their answers: plain values that workers also send to the admission process."""

from __future__ import annotations

import math

from msgspec import Struct

from frontend.protocol.priority import Priority

MINUTE_S = 60.0
ROUNDING_S = 1e-6  # a request that fits exactly must also fit after sums of floats


class RateLimits(Struct, frozen=True, array_like=True):
    """Limits of a key; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0


class Scope(Struct, frozen=True, array_like=True):
    """Requests that are counted together: all requests of a key, or its requests for one model."""

    key: str  # its id
    model: str  # empty: all models
    limits: RateLimits

    def __str__(self) -> str:
        return f"this key with the model {self.model}" if self.model else "this key"


class AdmissionRequest(Struct, frozen=True, kw_only=True, array_like=True):
    """One completion, as the limits see it. The first one of an HTTP request is charged for all of them."""

    sender: str  # a key, or without keys an address; waiting completions of different senders are served fairly
    scopes: tuple[Scope, ...] = ()  # each must have room for the charge
    num_charged_tokens: int = 0  # estimate: prompts and completions
    num_completions: int = 1  # charged
    model: str = ""  # empty: it needs no place
    num_tokens: int = 0  # estimate: its prompt, and what it may generate
    num_prompt_tokens: int = 0  # estimate
    is_first: bool = True  # the first of its HTTP request; only this one may be refused or wait too long
    num_replicas: int = 1  # ready replicas of the model
    max_sequences: int = 1  # sequences that one replica decodes at a time
    priority: Priority = Priority.NORMAL


class Reading(Struct, frozen=True, array_like=True):
    """The state of a rate."""

    rate: str  # requests or tokens: OpenAI's words in headers and error codes
    limit: int  # amount per minute
    used_s: float  # time until the whole limit is available again

    @property
    def remaining(self) -> int:
        """The requests or tokens that the rate allows now."""
        remaining = math.floor((MINUTE_S + ROUNDING_S - self.used_s) * self.limit / MINUTE_S)
        return min(self.limit, max(0, remaining))


class Lease(Struct):
    """The permission to run a completion. It must be released."""

    id: str  # empty: nothing is charged
    request: AdmissionRequest
    readings: tuple[Reading, ...] = ()
    has_place: bool = True  # false once its work has ended
