"""How long a prompt's tokens stay in the KV cache, as the fields of each API say it.

A mark in a prompt keeps the whole prompt: its tokens stay together in one place of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from frontend.protocol.body import Body

MAX_KEPT_S = 86_400
_DEFAULT = "30m"  # of OpenAI's API
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(lifetime: str) -> int:
    """Return the seconds of a text such as `30m`."""
    return int(lifetime[:-1]) * _SECONDS[lifetime[-1]]


def _check(lifetime: str) -> str:
    if seconds(lifetime) > MAX_KEPT_S:
        raise ValueError("at most 24h")
    return lifetime


type Retention = Literal["in_memory", "in-memory", "24h"]
type Lifetime = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[smh]$"), AfterValidator(_check)]


class PromptCacheOptions(Body):
    """Whether the prompt is kept, and how long."""

    mode: Literal["implicit", "explicit"] | None = None  # explicit: only with a breakpoint
    ttl: Lifetime | None = None


class CacheBreakpoint(Body):
    """OpenAI's mark in a prompt."""

    mode: Literal["explicit"] | None = None
    ttl: Lifetime | None = None


class CacheControl(Body):
    """Anthropic's mark in a prompt."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def lifetime(self) -> str:
        """The time for which the prompt is kept."""
        return self.ttl or "5m"


def kept_s(options: PromptCacheOptions | None, retention: str | None, marks: Iterable[CacheBreakpoint]) -> float:
    """Return the seconds for which a prompt is kept; 0: as long as nothing else needs the memory."""
    default = (options and options.ttl) or _DEFAULT
    lifetimes = [mark.ttl or default for mark in marks]
    if options is not None and options.mode != "explicit" and (options.mode or options.ttl):
        lifetimes.append(default)
    if retention == "24h":
        lifetimes.append(retention)
    return max(map(seconds, lifetimes), default=0)
