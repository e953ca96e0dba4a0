"""Notices stages that died or hang, ends their streams and has Triton reload them.

Triton itself does not: after the death of a stage process its open streams stay silent, its model stays READY, and
nothing restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Set
from enum import StrEnum
from typing import Any

from frontend.errors import (
    APIError,
    EngineFailed,
    ModelNotReady,
    ModelUnloaded,
    NotFound,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.health_checks import check_engine, check_text_stage
from frontend.triton.models import ModelDirectory
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import ensemble_of_stage, stage_name

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 1.0  # pause between polls of an engine
STATS_TIMEOUT_S = 2.0  # time for an answer; an engine that takes longer has missed a poll
MAX_MISSES = 2  # polls in a row without an answer; after them an engine counts as lost
# A tokenizer or detokenizer hangs that neither answers nor executes anything in this time. It may have executed
# something after the check began, and hang since then: the next check, after a pause, finds that.
TEXT_STAGE_TIMEOUT_S = 4.0
# The pause between two reloads of a stage, unless the first one took longer: a stage that dies at once, maybe after
# minutes of loading, must not keep its machine busy.
RELOAD_PAUSE_S = 5.0
LOADING_INTERVAL_S = 0.5  # pause between looks at a stage that another frontend reloads
UNLOADED_SILENCE_S = 5.0  # an unloaded model's last outputs have arrived after it
_SILENCE_MARGIN_S = 10.0  # time that a call may last beyond the longest step of an engine


class Verdict(StrEnum):
    """What one poll of an engine means for its streams."""

    FINE = "fine"
    RESTARTED = "restarted"  # a new epoch: the old sequences are gone, and the engine is loaded again
    UNLOADED = "unloaded"  # the sequences have ended, and the engine needs no reload
    LOST = "lost"  # the sequences are gone, and the engine needs a reload


class EngineHealth:
    """Judges one engine by its polls. Pure."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._num_misses = 0

    def answered(self, epoch: int) -> Verdict:
        """Judge an answer."""
        is_restarted = self._epoch is not None and self._epoch != epoch
        self._epoch, self._num_misses = epoch, 0
        return Verdict.RESTARTED if is_restarted else Verdict.FINE

    def failed(self, error: APIError) -> Verdict:
        """Judge an error in place of an answer."""
        if isinstance(error, StageUnhealthy):
            return self._lost()
        if isinstance(error, TritonUnreachable):
            # The streams broke with the connection. Later streams belong to a later epoch.
            self._epoch, self._num_misses = None, 0
            return Verdict.FINE
        if isinstance(error, ModelNotReady | NotFound):
            # An operator unloaded it, or it is still loading.
            is_known, self._epoch, self._num_misses = self._epoch is not None, None, 0
            return Verdict.UNLOADED if is_known else Verdict.FINE
        self._num_misses += 1
        return self._lost() if self._num_misses >= MAX_MISSES else Verdict.FINE

    def _lost(self) -> Verdict:
        self._num_misses = 0
        return Verdict.LOST


class ReloadPlan:
    """The stages that need a reload, and the earliest time of each reload. Pure.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wanted: set[str] = set()  # stages, by their Triton names
        self._started_at: dict[str, float] = {}
        self._paused_until: dict[str, float] = {}
        self._settled_at: dict[str, float] = {}

    def __contains__(self, stage: str) -> bool:
        return stage in self._wanted

    def is_news(self, stage: str, since: float) -> bool:
        """Whether trouble since that time is new: no reload of the stage is planned, and none has ended since then."""
        return stage not in self._wanted and since >= self._settled_at.get(stage, since)

    def want(self, stage: str) -> None:
        """Plan a reload, once."""
        self._wanted.add(stage)

    def settle(self, stage: str) -> None:
        """Mark a planned stage as repaired: failures of earlier requests no longer count."""
        if stage in self._wanted:
            self._wanted.remove(stage)
            self._settled_at[stage] = self._clock()

    def start_due(self) -> list[str]:
        """Return the stages that may be reloaded now; the pause of each begins."""
        now = self._clock()
        due = sorted(stage for stage in self._wanted if now >= self._paused_until.get(stage, now))
        self._started_at |= dict.fromkeys(due, now)
        self._paused_until |= dict.fromkeys(due, now + RELOAD_PAUSE_S)
        return due

    def ended(self, stage: str) -> None:
        """Note that a reload has ended, successfully or not."""
        now = self._clock()
        self._paused_until[stage] = now + max(RELOAD_PAUSE_S, now - self._started_at.get(stage, now))

    def ensembles(self) -> set[str]:
        """Return the ensembles of the stages that need a reload."""
        return {ensemble_of_stage(stage) for stage in self._wanted}


class HealthMonitor:
    """Polls the stages of every model at an interval, ends the streams of lost ones and reloads them.

    Args:
        on_checked: called with an ensemble and its engine's statistics, or the error in place of them.
    """

    def __init__(
        self,
        triton: TritonClient,
        models: ModelDirectory,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        on_checked: Callable[[str, EngineStats | APIError], None] = lambda ensemble, seen: None,
    ) -> None:
        self._triton = triton
        self._models = models
        self._stall_s = settings.engine_stall_s
        self._clock = clock
        self._on_checked = on_checked
        self._health: dict[str, EngineHealth] = {}  # key: ensemble
        self._draining: set[str] = set()  # ensembles
        self._plan = ReloadPlan(clock)
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # the running one of each kind and stage
        self.on_lost: Callable[[str], None] = lambda ensemble: None  # called when a stage of it needs a reload
        triton.generations.on_stage_down = self.stage_down

    def stage_down(self, stage: str, since: float) -> None:
        """Note that a request or a check, begun at `since` (of the clock), found a stage dead or hanging."""
        if not self._plan.is_news(stage, since):
            return
        logger.warning("%s is down", stage)
        self._end_streams(stage)
        self._want_reload(stage)

    def recovering(self) -> set[str]:
        """Return the ensembles of the models that need a reload."""
        return self._plan.ensembles()

    def is_draining(self, ensemble: str) -> bool:
        """Whether a model's engine wanted no more requests in its last answer."""
        return ensemble in self._draining

    async def run(self) -> None:
        """Monitor until cancelled."""
        try:
            while True:
                self._news.clear()
                await self._guarded(self.poll_all())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), STATS_INTERVAL_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def poll_all(self) -> None:
        """Start one round: a poll of every engine, and the reloads that are due."""
        # The known ones first: a hanging server does not even list its models. A model that is no longer ready may
        # still have streams.
        known = set(self._models.latest.by_ensemble) | set(self._health)
        self._poll(known)
        try:
            await asyncio.wait_for(self._models.snapshot(), STATS_TIMEOUT_S)
        except TritonUnreachable:
            # The streams broke with the connection. Later streams belong to later epochs.
            self._health.clear()
        except (APIError, TimeoutError) as exc:
            logger.warning("Triton does not list its models: %s", exc or "no answer")
        else:
            self._poll(set(self._models.latest.by_ensemble) - known)
        for stage in self._plan.start_due():
            self._start(stage, self._reload(stage))

    async def poll(self, ensemble: str) -> None:
        """Poll one engine, and start the checks of the stages beside it."""
        stage, since = stage_name(ensemble, "engine"), self._clock()
        health = self._health.setdefault(ensemble, EngineHealth())
        epoch: int | None = None
        try:
            stats = await check_engine(self._triton, ensemble, deadline_s=STATS_TIMEOUT_S, stall_s=self._stall_s)
        except APIError as exc:
            verdict = health.failed(exc)
            if isinstance(exc, ModelNotReady | NotFound):
                self._health.pop(ensemble, None)
            # A model that is being reloaded is down, not unloaded.
            self._on_checked(ensemble, StageUnhealthy(stage) if ensemble in self.recovering() else exc)
        else:
            epoch = stats.epoch
            verdict = health.answered(epoch)
            (self._draining.add if stats.is_draining else self._draining.discard)(ensemble)
            self._on_checked(ensemble, stats)
            for text_stage in (stage_name(ensemble, "tokenizer"), stage_name(ensemble, "detokenizer")):
                if text_stage not in self._plan:
                    self._start(f"check {text_stage}", self._check(text_stage))
            self._end_silent(ensemble)
        if verdict is Verdict.FINE or not self._plan.is_news(stage, since):
            return
        logger.warning("the engine of %s is %s", ensemble, verdict)
        if verdict is Verdict.UNLOADED:
            self._start(f"end the streams of {ensemble}", self._end_unloaded(ensemble))
            return
        self._end_streams(stage, spared_epoch=epoch)
        if verdict is Verdict.LOST:
            self._want_reload(stage)

    async def _end_unloaded(self, ensemble: str) -> None:
        """End the streams of an unloaded model that get nothing any more. Triton still delivers its last outputs."""
        await asyncio.sleep(2 * UNLOADED_SILENCE_S)
        self._triton.generations.end_silent(ensemble, UNLOADED_SILENCE_S, ModelUnloaded())

    def _end_silent(self, ensemble: str) -> None:
        """End the calls that got nothing for longer than a step of a working engine takes."""
        error = EngineFailed("The model's outputs for this request do not arrive.")
        num_ended = self._triton.generations.end_silent(ensemble, self._stall_s + _SILENCE_MARGIN_S, error)
        if num_ended:
            logger.warning("ended %d requests to %s, since their outputs did not arrive", num_ended, ensemble)

    async def _check(self, stage: str) -> None:
        """Check a text stage, and have it reloaded if it is dead or hangs."""
        since = self._clock()
        try:
            await check_text_stage(self._triton, stage, deadline_s=TEXT_STAGE_TIMEOUT_S)
        except (StageUnhealthy, TritonTimeout):
            self.stage_down(stage, since)
        except APIError as exc:  # it is not loaded, or Triton is away
            logger.debug("%s cannot be checked: %s", stage, exc.code)

    async def _reload(self, stage: str) -> None:
        try:
            await self.reload(stage)
        finally:
            self._plan.ended(stage)

    async def reload(self, stage: str) -> None:
        """Have Triton reload a stage, unless another frontend was faster. A failed load is tried again later."""
        ensemble = ensemble_of_stage(stage)
        try:
            while not await self._answers(stage):
                if not await self._triton.repository.is_loading(stage):
                    break
                await asyncio.sleep(LOADING_INTERVAL_S)  # another frontend reloads it
            else:
                self._settle(stage)
                return
            logger.warning("reloading %s", stage)
            # After a timeout, Triton still unloads the stage, maybe after a load for another frontend. So the stage
            # must be loaded in any case.
            with contextlib.suppress(TritonTimeout):
                await self._triton.repository.unload(stage)
        except APIError as exc:
            # Triton is away, or its model control is not explicit. The next check of a dead stage plans it again.
            logger.error("Triton did not unload %s: %s", stage, exc.message)
            self._settle(stage)
            return
        self._end_streams(stage)  # begun since the stage was found down; now none can begin
        if stage == stage_name(ensemble, "detokenizer"):
            await self._end_streams_of_others(ensemble)
        try:
            await self._triton.repository.load(ensemble, stage)
        except APIError as exc:
            logger.error("Triton did not load %s, next try in %g s: %s", stage, RELOAD_PAUSE_S, exc.message)
            return
        logger.warning("reloaded %s", stage)
        self._settle(stage)

    async def _end_streams_of_others(self, ensemble: str) -> None:
        """Have the engine end the requests of other frontends too.

        Triton sends their outputs to the dead detokenizer process: it fails them one after the other, a second each.
        """
        try:
            await self._triton.fail_streams(ensemble)
        except APIError as exc:
            logger.warning("the engine of %s did not end its streams: %s", ensemble, exc.message)

    def _settle(self, stage: str) -> None:
        self._plan.settle(stage)
        if stage == stage_name(ensemble_of_stage(stage), "engine"):
            self._health.pop(ensemble_of_stage(stage), None)  # the next epoch is a new engine's, not a restart

    def _want_reload(self, stage: str) -> None:
        self._plan.want(stage)
        self.on_lost(ensemble_of_stage(stage))
        self._news.set()

    async def _answers(self, stage: str) -> bool:
        ensemble = ensemble_of_stage(stage)
        try:
            if stage == stage_name(ensemble, "engine"):
                await check_engine(self._triton, ensemble, deadline_s=STATS_TIMEOUT_S, stall_s=self._stall_s)
            else:
                await check_text_stage(self._triton, stage, deadline_s=STATS_TIMEOUT_S)
        except APIError:
            return False
        return True

    def _poll(self, ensembles: Set[str]) -> None:
        for ensemble in sorted(ensembles):
            self._start(ensemble, self.poll(ensemble))

    def _end_streams(self, stage: str, error: APIError | None = None, *, spared_epoch: int | None = None) -> None:
        error = error or EngineFailed("The model broke down while it worked on this request.")
        num_ended = self._triton.generations.abort(stage, error, spared_epoch=spared_epoch)
        if num_ended:
            logger.warning("ended %d requests that needed %s", num_ended, stage)

    def _start(self, subject: str, work: Coroutine[Any, Any, None]) -> None:
        if subject in self._tasks and not self._tasks[subject].done():
            work.close()
            return
        self._tasks[subject] = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the monitor survive an unexpected exception."""
        try:
            await work
        except Exception:
            logger.exception("unexpected exception while monitoring the engines")
