"""What a request asks of the limits and what it is given, as plain values: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from frontend.protocol.priority import Priority


class Resource(StrEnum):
    """What a rate counts; OpenAI's words in headers and error codes."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What may be used; 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0  # requests at a time

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited, so that nothing needs counting."""
        return not (self.requests_per_minute or self.tokens_per_minute or self.max_concurrent)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is counted together: everything a key does, or what it does with one model."""

    key: str
    model: str  # empty: all of them
    limits: RateLimits

    @property
    def name(self) -> str:
        """What it is told apart by; no key's id has a slash."""
        return f"{self.key}/{self.model}"

    def __str__(self) -> str:
        return f"this key with the model {self.model}" if self.model else "this key"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """One request, as far as limits are concerned."""

    key: str  # whose it is: waiting requests are served fairly between keys
    scopes: tuple[Scope, ...] = ()  # all of which must have room; those without limits are left out
    num_tokens: int = 0  # estimated: prompt and completions
    model: str = ""  # where it is to be admitted
    num_sequences: int = 0  # completions that are generated; 0: it needs no admission
    num_prompt_tokens: int = 0  # estimated
    num_replicas: int = 1  # of the model that could serve it now
    max_sequences: int = 1  # sequences that one replica decodes at a time
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a rate, for the headers of the answer."""

    resource: Resource
    limit: int  # a minute
    remaining: int
    reset_s: float  # until all of it is there again


@dataclass(frozen=True, slots=True)
class Lease:
    """The permission to go on, to be released in the end."""

    id: str
    request: AdmissionRequest
    readings: tuple[Reading, ...] = ()


class Limiter(Protocol):
    """What decides who may go on, and when."""

    async def acquire(self, request: AdmissionRequest) -> Lease:
        """Wait until the request may go on. A caller that is cancelled meanwhile holds nothing.

        Raises:
            RateLimited: a limit of the key's own is reached.
            QueueFull: the model has no room, and would have none in time.
        """

    def release(self, lease: Lease, num_tokens: int) -> None:
        """Give back what a request held, and charge the tokens that it used. It never waits, nor fails."""

    async def close(self) -> None:
        """Let go of connections and tasks."""


def tightest(readings: tuple[Reading, ...]) -> dict[Resource, Reading]:
    """Return, of each resource, the reading of which the smallest share is left."""
    found: dict[Resource, Reading] = {}
    for reading in readings:
        other = found.get(reading.resource)
        if other is None or reading.remaining * other.limit < other.remaining * reading.limit:
            found[reading.resource] = reading
    return found
