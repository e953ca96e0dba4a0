"""The limits of one process: the rates of the keys, and a door before each model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from frontend.errors import QueueFull
from frontend.gateway.admission import Admission, Bounds
from frontend.gateway.headers import rate_headers
from frontend.gateway.rates import Rates
from frontend.gateway.types import Ask, Lease


class LocalLimiter:
    """Decides in this process.

    Args:
        rates: of the keys; they may be kept elsewhere.
        bounds_of: a model's.
    """

    def __init__(self, rates: Rates, bounds_of: Callable[[str], Bounds]) -> None:
        self._rates = rates
        self._bounds_of = bounds_of
        self._admissions: dict[str, Admission] = {}  # by model

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """What is in flight and what waits, of each model that was asked for."""
        return self._admissions

    async def acquire(self, ask: Ask) -> Lease:
        """Wait until the request may go on; see Limiter."""
        lease_id = secrets.token_hex(8) if ask.scopes else ""
        readings = await self._rates.take(lease_id, ask) if ask.scopes else ()
        if ask.num_sequences:
            try:
                await self._admission(ask.model).enter(ask)
            except BaseException as exc:
                if ask.scopes:
                    self._rates.undo(lease_id, ask)
                if isinstance(exc, QueueFull):
                    exc.headers = {**exc.headers, **rate_headers(readings)}
                raise
        return Lease(lease_id, ask, readings)

    def release(self, lease: Lease, num_tokens: int) -> None:
        """Give back what a request held; see Limiter."""
        if lease.ask.num_sequences:
            self._admission(lease.ask.model).leave(lease.ask)
        if lease.ask.scopes:
            self._rates.settle(lease.id, lease.ask, num_tokens)

    async def close(self) -> None:
        """Let go of the rates' connections."""
        await self._rates.close()

    def _admission(self, model: str) -> Admission:
        admission = self._admissions.get(model)
        if admission is None:
            admission = self._admissions[model] = Admission(self._bounds_of(model))
        return admission
