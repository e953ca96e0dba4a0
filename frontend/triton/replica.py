"""One Triton behind the frontend: its models, their replicas, and its requests of this process."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Self

from frontend.errors import APIError, ModelUnloaded
from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.endpoints import ModelFilter
from frontend.triton.health_monitor import HealthMonitor
from frontend.triton.leases import Hold, ModelLeases
from frontend.triton.models import ModelDirectory, ModelSnapshot
from frontend.triton.replica_state import State
from frontend.triton.routing import Beginnings, Kept, Work, num_missing
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import ensemble_to_model_id, replica_suffix


class Replica:
    """One endpoint with its health monitor.

    Args:
        endpoint: the host:port, for logs and metrics.
        triton: its client; the replica closes it.
        clock: monotonic seconds.
        on_checked: called with an ensemble and its engine's statistics, or the error in place of them.
        model_filter: the models that are offered through this endpoint; the pool changes it.
    """

    def __init__(
        self,
        endpoint: str,
        triton: TritonClient,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        on_checked: Callable[[str, EngineStats | APIError], None] = lambda ensemble, seen: None,
        model_filter: ModelFilter | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model_filter = model_filter or ModelFilter()
        self.triton = triton
        self.on_unreachable: Callable[[list[Hold]], None] = lambda holds: None  # set by the pool
        self.num_in_flight = Counter[str]()  # this process's requests, by ensemble
        self.begun_s: dict[str, float] = {}  # when the last of them began
        self.num_waiting_bytes = Counter[str]()  # of their prompts, see `routing.Work`
        self.kept = defaultdict[str, Kept](Kept)  # by ensemble
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.models = ModelDirectory(self, clock)
        self.leases = ModelLeases(
            triton.ask_arbiter,
            triton.repository.reload_arbiter,
            lambda model_id: bool(self.models.latest.replicas_of(model_id)),
            lambda: asyncio.shield(self.models.refreshing()),
            self._forget,
            lambda holds: self.on_unreachable(holds),
            clock,
        )
        self.monitor = HealthMonitor(endpoint, triton, self.models, settings, self.leases, clock, self._checked)
        self._clock = clock
        self._on_checked = on_checked

    async def run(self) -> None:
        """Monitor the stages, and exchange leases with the arbiter, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.monitor.run())
            tasks.create_task(self.leases.run())

    async def snapshot(self) -> ModelSnapshot:
        """Return the models that Triton has loaded, and those that it can load.

        Raises:
            APIError: Triton did not answer.
        """
        snapshot = await self.triton.snapshot()
        await self.leases.known()
        return self.leases.completed(snapshot, self.model_filter)

    def _checked(self, ensemble: str, seen: EngineStats | APIError) -> None:
        if isinstance(seen, APIError):
            self.kept.pop(ensemble, None)
        elif seen.kept_marks or ensemble in self.kept:
            self.kept[ensemble].told(seen.kept_marks, self.monitor.states[ensemble].asked_s)
        self._on_checked(ensemble, seen)

    def _forget(self, model_id: str) -> None:
        """Forget the states of a model's replicas, which are unloaded now."""
        for ensemble in [name for name in self.monitor.states if ensemble_to_model_id(name) == model_id]:
            del self.monitor.states[ensemble]
            self._checked(ensemble, ModelUnloaded())

    def state_of(self, ensemble: str, lora_name: str = "") -> str | None:
        """Return `ready`, or one word for the reason why a replica gets no requests; None: it is not served here.

        Args:
            lora_name: an adapter that must be loaded too; empty: none.
        """
        model = self.models.latest.by_ensemble.get(ensemble)
        if model is None or (lora_name and lora_name not in model.parameters.adapters):
            return None
        if self.models.error is not None:
            return "unreachable"
        return self.monitor.states[ensemble].state

    def quiet_s(self, ensemble: str) -> float:
        """Return the seconds since the last request to an ensemble began."""
        return self._clock() - self.begun_s.get(ensemble, -math.inf)

    def may_serve(self, model_id: str) -> bool:
        """Whether a request may get a replica of the model here, now or after a load."""
        ensembles = self.models.latest.replicas_of(model_id)
        if not ensembles:
            is_offered = model_id in self.model_filter and self.models.error is None
            return is_offered and self.leases.can_load(model_id)
        return any(self.state_of(ensemble) == "ready" for ensemble in ensembles)

    def states(self) -> dict[str, dict[str, str]]:
        """Return the states of the models that are served here, by id, under the endpoint; `@2` marks replica 2."""
        recovering = [name for name, each in self.monitor.states.items() if each.state is State.RECOVERING]
        states: dict[str, dict[str, str]] = {self.endpoint: {}}
        for ensemble in sorted({*self.models.latest.by_ensemble, *recovering}):
            place = states.setdefault(self.endpoint + replica_suffix(ensemble), {})
            place[ensemble_to_model_id(ensemble)] = self.state_of(ensemble) or State.RECOVERING
        return states

    def work_of(self, ensemble: str) -> Work:
        """Return what this process has an ensemble do."""
        return Work(self.num_in_flight[ensemble], self.num_in_flight.total(), self.num_waiting_bytes[ensemble])

    def serving(self, ensemble: str, beginnings: Beginnings | None = None) -> Serving:
        """Count a request to an ensemble from now on; see Serving.

        Args:
            beginnings: of its prompt, if several replicas serve the model.
        """
        now, num_bytes = self._clock(), 0
        if beginnings is not None:
            num_bytes = num_missing(beginnings, self.kept[ensemble])
            self.kept[ensemble].sent(beginnings, now)
            self.num_waiting_bytes[ensemble] += num_bytes
        self.num_in_flight[ensemble] += 1
        self.begun_s[ensemble] = now
        self.leases.begin(ensemble_to_model_id(ensemble))
        self._is_idle.clear()
        return Serving(self, ensemble, now, num_bytes)

    def served(self, ensemble: str) -> None:
        """Count a request no more."""
        self.num_in_flight[ensemble] -= 1
        self.leases.end(ensemble_to_model_id(ensemble))
        if not any(self.num_in_flight.values()):
            self._is_idle.set()

    async def until_idle(self) -> None:
        """Return when no request runs."""
        await self._is_idle.wait()


class Serving:
    """A request at a replica, which counts it until the end. Its failure counts for the state of the replica."""

    __slots__ = ("_ensemble", "_num_waiting_bytes", "_replica", "_started_at")

    def __init__(self, replica: Replica, ensemble: str, started_at: float, num_waiting_bytes: int) -> None:
        self._replica, self._ensemble, self._started_at = replica, ensemble, started_at
        self._num_waiting_bytes = num_waiting_bytes

    def begun(self) -> None:
        """Note that the prompt is computed."""
        if self._num_waiting_bytes:
            self._replica.num_waiting_bytes[self._ensemble] -= self._num_waiting_bytes
            self._num_waiting_bytes = 0

    def succeeded(self) -> None:
        """Note a completion that came to its end."""
        self._replica.monitor.states[self._ensemble].succeeded()

    def end(self, error: BaseException | None) -> None:
        """End it, after an error or without one."""
        if isinstance(error, APIError):
            self._replica.monitor.request_failed(self._ensemble, error, self._started_at)
        self.begun()
        self._replica.served(self._ensemble)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)
