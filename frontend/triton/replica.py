"""One Triton behind the frontend: its models, their replicas, and its requests of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from frontend.errors import (
    APIError,
    Draining,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    QueueFull,
    RateLimited,
    ReaderTooSlow,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton import health_monitor
from frontend.triton.client import TritonClient
from frontend.triton.endpoints import ModelFilter
from frontend.triton.health_checks import require_tokens
from frontend.triton.models import ModelDirectory
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import ensemble_to_model_id, replica_suffix

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # failures in a row after which a model gets no requests at an endpoint
BREAKER_PAUSE_S = 1.0  # time to the next trial
START_S = 10.0  # a Triton that starts beside the frontend listens by then
_TRIAL_TIMEOUT_S = 30.0  # time for a trial's one token


class CircuitBreaker:
    """Decides whether one replica of a model gets requests. Pure.

    Closed: it gets them. Open: it gets none. Half-open: it gets none, but a trial is under way.

    Args:
        max_failures: failures in a row that open it.
        pause_s: from the opening, or a failed trial, to the next trial.
        clock: monotonic seconds.
    """

    def __init__(self, *, max_failures: int, pause_s: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._clock = clock
        self._num_failures = 0
        self._trial_at_s = math.inf  # when open
        self.is_closed = True

    def succeeded(self) -> None:
        """Note a completion. It closes nothing: the completion may have begun before the breaker opened."""
        self._num_failures = 0

    def failed(self) -> None:
        """Note a failure of the server."""
        self._num_failures += 1
        if self._num_failures >= self._max_failures:
            self.open()

    def open(self) -> None:
        """Let no request through until a trial has succeeded."""
        if self.is_closed:
            self.is_closed = False
            self._trial_at_s = self._clock() + self._pause_s

    def begin_trial(self) -> bool:
        """Return whether a trial is due. The caller then runs it, and reports it with `end_trial`."""
        if self.is_closed or self._clock() < self._trial_at_s:
            return False
        self._trial_at_s = math.inf
        return True

    def end_trial(self, *, is_well: bool) -> None:
        """Close after a successful trial; else wait for the next one."""
        self._num_failures = 0
        self.is_closed = is_well
        self._trial_at_s = self._clock() + self._pause_s


class Replica:
    """One endpoint with its health monitor and a circuit breaker for each replica of a model.

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
        self.num_in_flight = Counter[str]()  # this process's requests, by ensemble
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.models = ModelDirectory(triton, clock)
        self.monitor = health_monitor.HealthMonitor(triton, self.models, settings, clock, on_checked)
        self.monitor.on_lost = self.open_circuit
        self._settings = settings
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}  # key: ensemble
        self._trials: set[asyncio.Task[None]] = set()
        self._logged: set[str] = set()  # reasons why the endpoint is not reached; empty while it is
        self._quiet_until_s = clock() + START_S

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
        if ensemble in self.monitor.recovering():
            return "recovering"
        if not self._breaker(ensemble).is_closed:
            return "failing"
        return "draining" if self.monitor.is_draining(ensemble) else "ready"

    def states(self) -> dict[str, dict[str, str]]:
        """Return the states of the models that are served here, by id, under the endpoint; `@2` marks replica 2."""
        states: dict[str, dict[str, str]] = {self.endpoint: {}}
        for ensemble in sorted({*self.models.latest.by_ensemble, *self.monitor.recovering()}):
            place = states.setdefault(self.endpoint + replica_suffix(ensemble), {})
            place[ensemble_to_model_id(ensemble)] = self.state_of(ensemble) or "recovering"
        return states

    @contextlib.contextmanager
    def serving(self, ensemble: str) -> Iterator[None]:
        """Count a request while it runs, and let its failure count for the circuit breaker."""
        self.num_in_flight[ensemble] += 1
        self._is_idle.clear()
        try:
            yield
        except APIError as exc:
            self._failed(ensemble, exc)
            raise
        finally:
            self.num_in_flight[ensemble] -= 1
            if not self.num_in_flight.total():
                self._is_idle.set()

    async def until_idle(self) -> None:
        """Return when no request runs."""
        await self._is_idle.wait()

    def succeeded(self, ensemble: str) -> None:
        """Note a completion."""
        self._breaker(ensemble).succeeded()

    def open_circuit(self, ensemble: str) -> None:
        """Send a model no requests until it has made a token for a trial."""
        self._judge(ensemble, CircuitBreaker.open)

    async def run(self) -> None:
        """Monitor the endpoint and run trials until cancelled."""
        monitoring = asyncio.create_task(self.monitor.run())
        try:
            while True:
                self.log_connection()
                self.start_trials()
                await asyncio.sleep(health_monitor.STATS_INTERVAL_S)
        finally:
            tasks = [monitoring, *self._trials]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def log_connection(self) -> None:
        """Log each reason why the endpoint is not reached once, and that it is reached again."""
        error = self.models.error
        if isinstance(error, TritonUnreachable):
            reason = error.reason or error.message
            if reason not in self._logged and self._clock() >= self._quiet_until_s:
                self._logged.add(reason)
                logger.warning("%s is not reached %s: %s", self.endpoint, self._settings.triton_security, reason)
        elif error is None:
            if self.models.latest.by_ensemble:
                self._quiet_until_s = 0.0
            if self._logged:
                self._logged.clear()
                logger.info("%s is reached again", self.endpoint)

    def start_trials(self) -> None:
        """Start the trials that are due."""
        for ensemble, breaker in self._breakers.items():
            # A model that is away or needs a reload would fail its trial.
            if self.state_of(ensemble) == "failing" and breaker.begin_trial():
                task = asyncio.get_running_loop().create_task(self._try(ensemble, breaker))
                self._trials.add(task)
                task.add_done_callback(self._trials.discard)

    async def _try(self, ensemble: str, breaker: CircuitBreaker) -> None:
        is_well = False
        try:
            deadline_s = _TRIAL_TIMEOUT_S
            stats = await self.triton.engine_stats(ensemble, deadline_s)
            await require_tokens(self.triton, ensemble, stats, deadline_s=deadline_s)
            is_well = True
            logger.warning("%s is well again at %s", ensemble, self.endpoint)
        except APIError as exc:
            logger.warning("%s is not well at %s: %s", ensemble, self.endpoint, exc.code)
        except Exception:
            logger.exception("unexpected exception in the trial of %s at %s", ensemble, self.endpoint)
        finally:
            breaker.end_trial(is_well=is_well)

    def _failed(self, ensemble: str, exc: APIError) -> None:
        match exc:
            case InvalidRequest() | RateLimited() | ReaderTooSlow() | NotFound() | ModelNotReady() | Draining():
                return  # no fault of the server
            case QueueFull() | TritonTimeout():
                return  # a long text may take longer to tokenize; the health monitor judges silence
            case TritonUnreachable() | StageUnhealthy():
                self.open_circuit(ensemble)
            case _:
                self._judge(ensemble, CircuitBreaker.failed)

    def _judge(self, ensemble: str, verdict: Callable[[CircuitBreaker], None]) -> None:
        breaker = self._breaker(ensemble)
        was_closed = breaker.is_closed
        verdict(breaker)
        if was_closed and not breaker.is_closed:
            logger.warning("%s gets no requests at %s until a trial succeeds", ensemble, self.endpoint)

    def _breaker(self, ensemble: str) -> CircuitBreaker:
        if ensemble not in self._breakers:
            self._breakers[ensemble] = CircuitBreaker(
                max_failures=MAX_FAILURES,
                pause_s=BREAKER_PAUSE_S,
                clock=self._clock,
            )
        return self._breakers[ensemble]
