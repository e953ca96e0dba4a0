"""The settings of the limits as the limits need them: who has which, and where they are kept."""

from __future__ import annotations

import functools
from urllib.parse import urlsplit

from frontend.gateway.admission import Bounds, LocalLimiter
from frontend.gateway.model_limits import model_limits_of
from frontend.gateway.outage import OnFailure, Outage
from frontend.gateway.rates import MemoryRates, Rates
from frontend.gateway.socket_limiter import SocketLimiter
from frontend.gateway.types import Limiter, RateLimits, Scope
from frontend.settings import Settings


class Policy:
    """What the settings say about limits.

    Raises:
        SettingsError: at construction.
    """

    def __init__(self, settings: Settings) -> None:
        self._of_models = model_limits_of(settings)
        self._bounds = Bounds(
            max_in_flight=settings.max_in_flight,
            max_in_flight_prompt_tokens=settings.max_in_flight_prompt_tokens,
            max_queue_wait_s=settings.max_queue_wait_s,
        )
        self.default_rates = RateLimits(
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            max_concurrent=settings.max_concurrent,
        )

    def bounds(self, model: str) -> Bounds:
        """Return what a model takes."""
        own = self._of_models.get(model)
        return self._bounds if own is None else own.applied_to(self._bounds)

    @functools.cached_property
    def longest_wait_s(self) -> float:
        """Return the longest time that a request may wait for any model."""
        return max(each.max_queue_wait_s for each in (self._bounds, *map(self.bounds, self._of_models)))

    def scopes(self, key: str, rates: RateLimits, model: str) -> tuple[Scope, ...]:
        """Return what a key's request for a model is counted in: nothing where nothing is limited."""
        found = () if rates.is_unlimited else (Scope(key, "", rates),)
        own = self._of_models.get(model)
        return found if own is None or own.rates.is_unlimited else (*found, Scope(key, model, own.rates))


def limiter_of(settings: Settings) -> Limiter:
    """Return where the limits are kept: in a process for all workers, or in this one."""
    if settings.limits_socket:
        outage = Outage("the admission process", OnFailure(settings.limits_on_failure))
        return SocketLimiter(settings.limits_socket, Policy(settings).longest_wait_s, outage)
    return deciding_limiter_of(settings)


def deciding_limiter_of(settings: Settings) -> LocalLimiter:
    """Return the limiter that decides in this process; the keys' rates may be in a Redis that replicas share."""
    rates: Rates = MemoryRates()
    if settings.redis_url:
        from frontend.gateway.redis_rates import RedisRates  # only where it is used: it is a large library

        host = urlsplit(settings.redis_url).hostname or "on a Unix socket"
        rates = RedisRates(settings.redis_url, Outage(f"Redis {host}", OnFailure(settings.limits_on_failure)))
    return LocalLimiter(rates, Policy(settings).bounds)
