"""Notices engines that died or hang, ends their streams and has Triton reload what is down.

Nobody else does: a killed stage process leaves open streams silent for ever, its model stays READY, and Triton does
not restart it.
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
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton.models import ModelDirectory, Triton
from frontend.triton.probe import look_at_engine, look_at_stage
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import slug_of_stage, slug_to_model_id, stage_name

logger = logging.getLogger(__name__)

MAX_MISSES = 2  # polls in a row without an answer, after which an engine is taken for lost
# After a reload, until the same stage is reloaded again, or as long as the reload took: a stage that dies at once,
# maybe after minutes of loading, must not keep its machine busy with that.
RELOAD_PAUSE_S = 5.0


class Verdict(StrEnum):
    """What one look at an engine means for its streams."""

    FINE = "fine"
    RESTARTED = "restarted"  # another epoch: the old sequences are gone, nobody needs to reload it
    UNLOADED = "unloaded"  # likewise
    LOST = "lost"  # the sequences are gone and somebody must reload it


class EngineHealth:
    """One engine, judged from its polls. Pure."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._num_misses = 0

    def answered(self, epoch: int) -> Verdict:
        """Judge an answer."""
        is_restarted = self._epoch is not None and self._epoch != epoch
        self._epoch, self._num_misses = epoch, 0
        return Verdict.RESTARTED if is_restarted else Verdict.FINE

    def failed(self, error: APIError) -> Verdict:
        """Judge a poll that brought an error instead of an answer."""
        if isinstance(error, StageUnhealthy):
            return self._lost()
        if isinstance(error, TritonUnreachable):
            # Its streams broke with the connection, so that those it will have next are not of this epoch.
            self._epoch, self._num_misses = None, 0
            return Verdict.FINE
        if isinstance(error, ModelNotReady | NotFound):
            # Somebody has unloaded it, or loads it just now. Its streams are gone, the next one's not yet there.
            is_known, self._epoch, self._num_misses = self._epoch is not None, None, 0
            return Verdict.UNLOADED if is_known else Verdict.FINE
        self._num_misses += 1
        return self._lost() if self._num_misses >= MAX_MISSES else Verdict.FINE

    def _lost(self) -> Verdict:
        self._num_misses = 0
        return Verdict.LOST


class ReloadPlan:
    """Which stages have to be reloaded, and when that may be tried. Pure.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wanted: set[str] = set()  # stages, by their Triton names
        self._tried_at: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}
        self._settled_at: dict[str, float] = {}

    def is_news(self, stage: str, since: float) -> bool:
        """Whether trouble that began as early as `since` is not what is being dealt with, or was."""
        return stage not in self._wanted and since >= self._settled_at.get(stage, since)

    def want(self, stage: str) -> None:
        """Ask for a reload; asking twice is asking once."""
        self._wanted.add(stage)

    def settle(self, stage: str) -> None:
        """Note that a stage that was down needs nothing more: whatever was started before says nothing about it."""
        if stage in self._wanted:
            self._wanted.remove(stage)
            self._settled_at[stage] = self._clock()

    def take_due(self) -> list[str]:
        """Return the stages whose reload may be tried now, and let each of them rest for a while."""
        now = self._clock()
        due = sorted(stage for stage in self._wanted if now >= self._rests_until.get(stage, now))
        self._tried_at |= dict.fromkeys(due, now)
        self._rests_until |= dict.fromkeys(due, now + RELOAD_PAUSE_S)
        return due

    def tried(self, stage: str) -> None:
        """Note that a reload that was due has ended, well or not."""
        now = self._clock()
        self._rests_until[stage] = now + max(RELOAD_PAUSE_S, now - self._tried_at.get(stage, now))

    def slugs(self) -> set[str]:
        """Return the ensembles of the stages that wait for a reload."""
        return {slug_of_stage(stage) for stage in self._wanted}


class EngineWatch:
    """Looks at every engine at an interval, and acts on what it sees.

    Args:
        on_look: told a model's id, and what its engine says of itself or why it does not.
    """

    def __init__(
        self,
        triton: Triton,
        models: ModelDirectory,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        on_look: Callable[[str, EngineStats | APIError], None] = lambda model, seen: None,
    ) -> None:
        self._triton = triton
        self._models = models
        self._settings = settings
        self._deadline_s, self._stall_s = settings.stats_deadline_s, settings.engine_stall_s
        self._clock = clock
        self._on_look = on_look
        self._health: dict[str, EngineHealth] = {}  # by slug
        self._draining: set[str] = set()  # slugs
        self._plan = ReloadPlan(clock)
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by what they are about: one at a time each
        self.on_lost: Callable[[str], None] = lambda slug: None  # told the slug of a model that needs a reload
        triton.on_stage_down = self.stage_down

    def stage_down(self, stage: str, since: float) -> None:
        """Note that a request, begun at `since` (of the clock), found a stage's process gone."""
        if not self._plan.is_news(stage, since):
            return
        logger.warning("%s is down", stage)
        self._end_streams(stage)
        self._want_reload(stage)

    def recovering(self) -> set[str]:
        """Return the slugs of the models that wait for a reload."""
        return self._plan.slugs()

    def is_draining(self, slug: str) -> bool:
        """Whether a model's engine, when it last answered, was to get no further requests."""
        return slug in self._draining

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                self._news.clear()
                await self._guarded(self.look())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), self._settings.stats_interval_s)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def look(self) -> None:
        """Start one round: a poll of every engine, and the reloads that are due."""
        # Asked first: a server that hangs does not even say what it serves. Those that are not ready any more, too:
        # their streams go on as long as their engines are there.
        known = set(self._models.latest.by_slug) | set(self._health)
        self._poll(known)
        try:
            await asyncio.wait_for(self._models.snapshot(), self._settings.stats_deadline_s)
        except TritonUnreachable:
            # Its streams broke with the connection: those of its next life are of another epoch.
            self._health.clear()
        except (APIError, TimeoutError) as exc:
            logger.warning("Triton does not say what it serves: %s", exc or "no answer")
        else:
            self._poll(set(self._models.latest.by_slug) - known)
        for stage in self._plan.take_due():
            self._start(stage, self._reload(stage))

    async def poll(self, slug: str) -> None:
        """Look at one engine."""
        stage, since = stage_name(slug, "engine"), self._clock()
        health = self._health.setdefault(slug, EngineHealth())
        epoch: int | None = None
        try:
            stats = await look_at_engine(self._triton, slug, deadline_s=self._deadline_s, stall_s=self._stall_s)
        except APIError as exc:
            verdict = health.failed(exc)
            if isinstance(exc, ModelNotReady | NotFound):
                self._health.pop(slug, None)
            # One that nobody has unloaded on purpose is down, whatever its stage says.
            self._on_look(slug_to_model_id(slug), StageUnhealthy(stage) if slug in self.recovering() else exc)
        else:
            epoch = stats.epoch
            verdict = health.answered(epoch)
            (self._draining.add if stats.is_draining else self._draining.discard)(slug)
            self._on_look(slug_to_model_id(slug), stats)
            self._look_beside(slug, stats)
        if verdict is Verdict.FINE or not self._plan.is_news(stage, since):
            return
        logger.warning("the engine of %s is %s", slug, verdict)
        # Whoever unloads it by force has its requests told why, which this look may overtake.
        self._end_streams(stage, ModelUnloaded() if verdict is Verdict.UNLOADED else None, spared_epoch=epoch)
        if verdict is Verdict.LOST:
            self._want_reload(stage)

    def _look_beside(self, slug: str, stats: EngineStats) -> None:
        """Find the stages through which nothing comes although the engine works: whoever waits, waits in vain."""
        interval_s = self._settings.stats_interval_s
        is_at_work = stats.step_age_ms < interval_s * 1000  # it has begun a turn since the last look
        for stage in self._triton.stalled_stages(slug, interval_s if is_at_work else 0.0, self._settings.stage_stall_s):
            logger.warning("nothing has come through %s for %g s", stage, self._settings.stage_stall_s)
            self._end_streams(stage)
            self._start(stage, self._examine(stage))

    async def _examine(self, stage: str) -> None:
        """Have a stage reloaded if it is down: maybe only what was under way has been lost."""
        since = self._clock()
        if not await self._answers(stage):
            self.stage_down(stage, since)

    async def _reload(self, stage: str) -> None:
        try:
            await self.reload(stage)
        finally:
            self._plan.tried(stage)

    async def reload(self, stage: str) -> None:
        """Have Triton reload a stage, unless another frontend was faster. What does not load is tried again later."""
        slug = slug_of_stage(stage)
        if await self._answers(stage):
            self._settle(stage)
            return
        logger.warning("reloading %s", stage)
        try:
            await self._triton.unload(stage)
        except APIError as exc:
            # Triton is away, or its model control is not explicit. Whoever still finds the stage down says so again.
            logger.error("Triton did not unload %s: %s", stage, exc.message)
            self._settle(stage)
            return
        self._end_streams(stage)  # those that came since; none can come now
        if stage == stage_name(slug, "detokenizer"):
            await self._end_streams_of_others(slug)
        try:
            await self._triton.load(slug, stage)
        except APIError as exc:
            logger.error("Triton did not load %s, next try in %g s: %s", stage, RELOAD_PAUSE_S, exc.message)
            return
        logger.warning("reloaded %s", stage)
        self._settle(stage)

    async def _end_streams_of_others(self, slug: str) -> None:
        """Have the engine end what it works on for other frontends, too.

        What was begun before goes through the stage that was begun with, also where that is dead: Triton answers those
        requests one after the other, after a second each, and there may be a hundred.
        """
        try:
            await self._triton.fail_streams(slug)
        except APIError as exc:
            logger.warning("the engine of %s did not end its streams: %s", slug, exc.message)

    def _settle(self, stage: str) -> None:
        self._plan.settle(stage)
        if stage == stage_name(slug_of_stage(stage), "engine"):
            self._health.pop(slug_of_stage(stage), None)  # the next epoch is a new engine's, not a restart

    def _want_reload(self, stage: str) -> None:
        self._plan.want(stage)
        self.on_lost(slug_of_stage(stage))
        self._news.set()

    async def _answers(self, stage: str) -> bool:
        try:
            await look_at_stage(self._triton, stage, deadline_s=self._deadline_s, stall_s=self._stall_s)
        except APIError:
            return False
        return True

    def _poll(self, slugs: Set[str]) -> None:
        for slug in sorted(slugs):
            self._start(slug, self.poll(slug))

    def _end_streams(self, stage: str, error: APIError | None = None, *, spared_epoch: int | None = None) -> None:
        error = error or EngineFailed("The model broke down while it worked on this request.")
        num_ended = self._triton.abort(stage, error, spared_epoch=spared_epoch)
        if num_ended:
            logger.warning("ended %d requests that needed %s", num_ended, stage)

    def _start(self, subject: str, work: Coroutine[Any, Any, None]) -> None:
        if subject in self._tasks and not self._tasks[subject].done():
            work.close()
            return
        self._tasks[subject] = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the watch survive what nobody foresaw."""
        try:
            await work
        except Exception:
            logger.exception("unexpected exception while watching the engines")
