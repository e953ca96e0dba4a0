"""One of the Tritons behind the frontend: what it serves, how well, and how many requests it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator

from frontend.errors import (
    APIError,
    Draining,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    Overloaded,
    RateLimited,
    ReaderTooSlow,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton.endpoints import ModelFilter
from frontend.triton.health_monitor import EngineWatch
from frontend.triton.models import ModelDirectory, Triton
from frontend.triton.probe import require_tokens
from model_repository.contract.output import EngineStats

logger = logging.getLogger(__name__)


class CircuitBreaker:
    """Whether one model of one replica gets requests. Pure.

    Closed: it does. Open: it does not. Half-open: it does not either, but a probe is under way.

    Args:
        max_failures: in a row, which open it.
        pause_s: between its opening, or a failed probe, and the next probe.
        clock: monotonic seconds.
    """

    def __init__(self, *, max_failures: int, pause_s: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._clock = clock
        self._num_failures = 0
        self._probe_at_s = math.inf  # when open
        self.is_closed = True

    def succeeded(self) -> None:
        """Note a completion. One that was begun before it opened says nothing about what is there now."""
        self._num_failures = 0

    def failed(self) -> None:
        """Note a failure that was not the client's fault."""
        self._num_failures += 1
        if self._num_failures >= self._max_failures:
            self.open()

    def open(self) -> None:
        """Let nothing through until a probe has succeeded."""
        if self.is_closed:
            self.is_closed = False
            self._probe_at_s = self._clock() + self._pause_s

    def take_probe(self) -> bool:
        """Return whether a probe is due; whoever gets it must say with `probed` how it went."""
        if self.is_closed or self._clock() < self._probe_at_s:
            return False
        self._probe_at_s = math.inf
        return True

    def probed(self, *, is_well: bool) -> None:
        """Close after a probe that succeeded; else wait for the next one."""
        self._num_failures = 0
        self.is_closed = is_well
        self._probe_at_s = self._clock() + self._pause_s


class Replica:
    """An endpoint, watched.

    Args:
        endpoint: its host:port, for people.
        triton: the connection to it; this closes it.
        clock: monotonic seconds.
        on_look: told a model's id, and what its engine says of itself here or why it does not.
        model_filter: the models that the connection lets through; changed as they are named.
    """

    def __init__(
        self,
        endpoint: str,
        triton: Triton,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        on_look: Callable[[str, EngineStats | APIError], None] = lambda model, seen: None,
        model_filter: ModelFilter | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model_filter = model_filter or ModelFilter()
        self.triton = triton
        self.num_in_flight = 0  # of this process
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.models = ModelDirectory(triton, clock)
        self.watch = EngineWatch(triton, self.models, settings, clock, on_look)
        self.watch.on_lost = self.open_circuit
        self._settings = settings
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}  # by slug
        self._probes: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()  # why it is not reached; empty while it is

    def state_of(self, slug: str, lora_name: str = "") -> str | None:
        """Return `ready`, or in a word why a model gets no requests here; None: it is not served here.

        Args:
            lora_name: an adapter that must be there too; empty: none.
        """
        model = self.models.latest.by_slug.get(slug)
        if model is None or (lora_name and lora_name not in model.parameters.adapters):
            return None
        if self.models.error is not None:
            return "unreachable"
        if slug in self.watch.recovering():
            return "recovering"
        if not self._breaker(slug).is_closed:
            return "failing"
        return "draining" if self.watch.is_draining(slug) else "ready"

    def states(self) -> dict[str, str]:
        """Return the state of each model that is served here, by id."""
        served = self.models.latest.by_slug.items()
        return {model.id: state for slug, model in served if (state := self.state_of(slug)) is not None}

    @contextlib.contextmanager
    def serving(self, slug: str) -> Iterator[None]:
        """Count a request while it is under way, and what it says about the model if it fails."""
        self.num_in_flight += 1
        self._is_idle.clear()
        try:
            yield
        except APIError as exc:
            self._failed(slug, exc)
            raise
        finally:
            self.num_in_flight -= 1
            if not self.num_in_flight:
                self._is_idle.set()

    async def until_idle(self) -> None:
        """Return when no request is under way."""
        await self._is_idle.wait()

    def succeeded(self, slug: str) -> None:
        """Note a completion."""
        self._breaker(slug).succeeded()

    def open_circuit(self, slug: str) -> None:
        """Send a model no requests until it has made a token for a probe."""
        self._judge(slug, CircuitBreaker.open)

    async def run(self) -> None:
        """Watch and probe until cancelled."""
        watching = asyncio.create_task(self.watch.run())
        try:
            while True:
                self.tell_connection()
                self.start_probes()
                await asyncio.sleep(self._settings.stats_interval_s)
        finally:
            tasks = [watching, *self._probes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def tell_connection(self) -> None:
        """Log why the endpoint is not reached, each reason once, and when it is reached again."""
        error = self.models.error
        if isinstance(error, TritonUnreachable):
            reason = error.reason or error.message
            if reason not in self._told:
                self._told.add(reason)
                logger.warning("%s is not reached %s: %s", self.endpoint, self._settings.triton_security, reason)
        elif error is None and self._told:
            self._told.clear()
            logger.info("%s is reached again", self.endpoint)

    def start_probes(self) -> None:
        """Probe every model whose turn it is."""
        for slug, breaker in self._breakers.items():
            # What is away, or waits for a reload, would only fail; what is not loaded any more may come back.
            if self.state_of(slug) == "failing" and breaker.take_probe():
                task = asyncio.get_running_loop().create_task(self._probe(slug, breaker))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)

    async def _probe(self, slug: str, breaker: CircuitBreaker) -> None:
        is_well = False
        try:
            deadline_s = self._settings.probe_deadline_s
            stats = await self.triton.engine_stats(slug, deadline_s)
            await require_tokens(self.triton, slug, stats, deadline_s=deadline_s)
            is_well = True
            logger.warning("%s is well again at %s", slug, self.endpoint)
        except APIError as exc:
            logger.warning("%s is not well at %s: %s", slug, self.endpoint, exc.code)
        except Exception:
            logger.exception("unexpected exception while probing %s at %s", slug, self.endpoint)
        finally:
            breaker.probed(is_well=is_well)

    def _failed(self, slug: str, exc: APIError) -> None:
        match exc:
            case InvalidRequest() | RateLimited() | ReaderTooSlow() | NotFound() | ModelNotReady() | Draining():
                return  # the client's mistake, or nobody's
            case TritonTimeout():
                return  # maybe only a long text was tokenized: the engine watch judges silence
            case TritonUnreachable() | StageUnhealthy():
                self.open_circuit(slug)
            case _ if type(exc) is not Overloaded:  # a full queue is no failure
                self._judge(slug, CircuitBreaker.failed)

    def _judge(self, slug: str, verdict: Callable[[CircuitBreaker], None]) -> None:
        breaker = self._breaker(slug)
        was_closed = breaker.is_closed
        verdict(breaker)
        if was_closed and not breaker.is_closed:
            logger.warning("%s gets no requests at %s until a probe succeeds", slug, self.endpoint)

    def _breaker(self, slug: str) -> CircuitBreaker:
        if slug not in self._breakers:
            self._breakers[slug] = CircuitBreaker(
                max_failures=self._settings.breaker_failures,
                pause_s=self._settings.breaker_pause_s,
                clock=self._clock,
            )
        return self._breakers[slug]
