"""Notices stages that died or hang, ends their streams and has Triton reload them; tries replicas that failed.

Triton itself does not: after the death of a stage process its open streams stay silent, its model stays READY, and
nothing restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Set
from typing import Any

from frontend.errors import (
    APIError,
    EngineFailed,
    ModelUnloaded,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.health_checks import check_engine, check_text_stage, require_tokens
from frontend.triton.leases import ModelLeases
from frontend.triton.models import ModelDirectory
from frontend.triton.replica_state import RELOAD_PAUSE_S, ReplicaStates, State, Verdict
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import GENERATOR, ensemble_of_stage, ensemble_to_model_id, stage_name

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 1.0  # pause between polls of an engine
STATS_TIMEOUT_S = 2.0  # time for an answer; an engine that takes longer has missed a poll
# A tokenizer or detokenizer hangs that neither answers nor executes anything in this time. It may have executed
# something after the check began, and hang since then: the next check, after a pause, finds that.
TEXT_STAGE_TIMEOUT_S = 4.0
LOADING_INTERVAL_S = 0.5  # pause between looks at a stage that another frontend reloads
UNLOADED_SILENCE_S = 5.0  # an unloaded model's last outputs have arrived after it
START_S = 10.0  # a Triton that starts beside the frontend listens by then
_TRIAL_TIMEOUT_S = 30.0  # time for a trial's one token
_SILENCE_MARGIN_S = 10.0  # time that a call may last beyond the longest step of an engine


class HealthMonitor:
    """Polls the stages of every model at an endpoint at an interval, and repairs or tries replicas as their states say.

    Args:
        endpoint: the host:port, for logs.
        on_checked: called with an ensemble and its engine's statistics, or the error in place of them.
    """

    def __init__(
        self,
        endpoint: str,
        triton: TritonClient,
        models: ModelDirectory,
        settings: Settings,
        leases: ModelLeases,
        clock: Callable[[], float] = time.monotonic,
        on_checked: Callable[[str, EngineStats | APIError], None] = lambda ensemble, seen: None,
    ) -> None:
        self.states = ReplicaStates(clock)
        self._endpoint = endpoint
        self._triton = triton
        self._models = models
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._on_checked = on_checked
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # the running one of each kind and stage
        self._logged: set[str] = set()  # reasons why the endpoint is not reached; empty while it is
        self._quiet_until_s = clock() + START_S

    def request_failed(self, ensemble: str, error: APIError, since: float) -> None:
        """Note that a request or a trial, begun at `since` (of the clock), failed."""
        if isinstance(error, StageUnhealthy):
            self._stage_down(error.stage, since)
        elif self.states[ensemble].failed(error):
            logger.warning("%s gets no requests at %s until a trial succeeds", ensemble, self._endpoint)

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
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def poll_all(self) -> None:
        """Start one round: a poll of every engine, and the reloads and trials that are due."""
        # The known ones first: a hanging server does not even list its models. A model that is no longer ready may
        # still have streams.
        loaded = {ensemble for ensemble, state in self.states.items() if state.epoch is not None}
        known = loaded.union(self._models.latest.by_ensemble)
        self._poll(known)
        try:
            await asyncio.wait_for(self._models.snapshot(), STATS_TIMEOUT_S)
        except TritonUnreachable:
            for state in self.states.values():
                state.disconnected()
        except (APIError, TimeoutError) as exc:
            logger.warning("Triton does not list its models: %s", exc or "no answer")
        else:
            self._poll(set(self._models.latest.by_ensemble) - known)
        self.log_connection()
        for ensemble, state in self.states.items():
            for stage in state.reloads_due():
                self._start(stage, self._reload(stage))
            # A model that is away would fail its trial.
            if state.is_trial_due and self._models.error is None and ensemble in self._models.latest.by_ensemble:
                self._start(f"try {ensemble}", self._try(ensemble))

    def log_connection(self) -> None:
        """Log each reason why the endpoint is not reached once, and that it is reached again."""
        error = self._models.error
        if isinstance(error, TritonUnreachable):
            reason = error.reason or error.message
            if reason not in self._logged and self._clock() >= self._quiet_until_s:
                self._logged.add(reason)
                logger.warning("%s is not reached %s: %s", self._endpoint, self._settings.triton_security, reason)
        elif error is None:
            if self._models.latest.by_ensemble:
                self._quiet_until_s = 0.0
            if self._logged:
                self._logged.clear()
                logger.info("%s is reached again", self._endpoint)

    async def poll(self, ensemble: str) -> None:
        """Poll one engine, and start the checks of the stages beside it."""
        state, stage, since = self.states[ensemble], stage_name(ensemble, "engine"), self._clock()
        epoch: int | None = None
        try:
            seen: EngineStats | APIError = await self._check_engine(ensemble)
        except APIError as exc:
            seen = exc
        if not self._leases.is_held(ensemble_to_model_id(ensemble)):
            return  # it is unloaded now, which is neither well nor down
        if isinstance(seen, APIError):
            verdict = state.missed(seen, since)
            # A model that is being reloaded is down, not unloaded.
            self._on_checked(ensemble, StageUnhealthy(stage) if state.state is State.RECOVERING else seen)
        else:
            epoch = seen.epoch
            verdict = state.answered(seen, since)
            self._on_checked(ensemble, seen)
            model = self._models.latest.by_ensemble.get(ensemble)
            for name in (GENERATOR if model is None else model.parameters.layout).stages:
                text_stage = stage_name(ensemble, name)
                if text_stage != stage and text_stage not in state.lost:
                    self._start(f"check {text_stage}", self._check(text_stage))
            self._end_silent(ensemble)
        if verdict is not Verdict.FINE:
            logger.warning("the engine of %s is %s", ensemble, verdict)
        match verdict:
            case Verdict.UNLOADED:
                self._start(f"end the streams of {ensemble}", self._end_unloaded(ensemble))
            case Verdict.RESTARTED:
                self._end_streams(stage, spared_epoch=epoch)
            case Verdict.LOST:
                self._end_streams(stage)
                self._news.set()

    async def _check_engine(self, ensemble: str) -> EngineStats:
        stall_s = self._settings.engine_stall_s
        return await check_engine(self._triton, ensemble, deadline_s=STATS_TIMEOUT_S, stall_s=stall_s)

    async def _end_unloaded(self, ensemble: str) -> None:
        """End the streams of an unloaded model that get nothing any more. Triton still delivers its last outputs."""
        await asyncio.sleep(2 * UNLOADED_SILENCE_S)
        self._triton.generations.end_silent(ensemble, UNLOADED_SILENCE_S, ModelUnloaded())

    def _end_silent(self, ensemble: str) -> None:
        """End the calls that got nothing for longer than a step of a working engine takes."""
        error = EngineFailed("The model's outputs for this request do not arrive.")
        max_silence_s = self._settings.engine_stall_s + _SILENCE_MARGIN_S
        num_ended = self._triton.generations.end_silent(ensemble, max_silence_s, error)
        if num_ended:
            logger.warning("ended %d requests to %s, since their outputs did not arrive", num_ended, ensemble)

    async def _check(self, stage: str) -> None:
        """Check a text stage, and have it reloaded if it is dead or hangs."""
        since = self._clock()
        try:
            await check_text_stage(self._triton, stage, deadline_s=TEXT_STAGE_TIMEOUT_S)
        except (StageUnhealthy, TritonTimeout):
            self._stage_down(stage, since)
        except APIError as exc:  # it is not loaded, or Triton is away
            logger.debug("%s cannot be checked: %s", stage, exc.code)

    async def _try(self, ensemble: str) -> None:
        """Have a replica that failed make a token."""
        since, stats = self._clock(), None
        try:
            before = await self._triton.engine_stats(ensemble, _TRIAL_TIMEOUT_S)
            await require_tokens(self._triton, ensemble, before, deadline_s=_TRIAL_TIMEOUT_S)
            stats = before
            logger.warning("%s is well again at %s", ensemble, self._endpoint)
        except APIError as exc:
            logger.warning("%s is not well at %s: %s", ensemble, self._endpoint, exc.code)
            self.request_failed(ensemble, exc, since)
        finally:
            self.states[ensemble].end_trial(stats)

    def _stage_down(self, stage: str, since: float) -> None:
        """Note that a request or a check, begun at `since` (of the clock), found a stage dead or hanging."""
        if self.states[ensemble_of_stage(stage)].lose(stage, since):
            logger.warning("%s is down", stage)
            self._end_streams(stage)
            self._news.set()

    async def _reload(self, stage: str) -> None:
        began_at, is_repaired = self._clock(), False
        try:
            with self._leases.repairing(ensemble_to_model_id(ensemble_of_stage(stage))) as may_repair:
                is_repaired = not may_repair or await self._repair(stage)  # an unloaded model needs no repair
        finally:
            self.states[ensemble_of_stage(stage)].end_reload(stage, began_at, is_repaired=is_repaired)

    async def _repair(self, stage: str) -> bool:
        """Have Triton reload a stage, unless another frontend was faster; return whether it needs no other reload."""
        ensemble = ensemble_of_stage(stage)
        try:
            while not await self._answers(stage):
                if not await self._triton.repository.is_loading(stage):
                    break
                await asyncio.sleep(LOADING_INTERVAL_S)  # another frontend reloads it
            else:
                return True
            logger.warning("reloading %s", stage)
            # After a timeout, Triton still unloads the stage, maybe after a load for another frontend. So the stage
            # must be loaded in any case.
            with contextlib.suppress(TritonTimeout):
                await self._triton.repository.unload(stage)
        except APIError as exc:
            # Triton is away, or its model control is not explicit. The next check of a dead stage plans it again.
            logger.error("Triton did not unload %s: %s", stage, exc.message)
            return True
        self._end_streams(stage)  # begun since the stage was found down; now none can begin
        if stage == stage_name(ensemble, "detokenizer"):
            await self._end_streams_of_others(ensemble)
        try:
            await self._triton.repository.load(ensemble, stage)
        except APIError as exc:
            logger.error("Triton did not load %s, next try in %g s: %s", stage, RELOAD_PAUSE_S, exc.message)
            return False
        logger.warning("reloaded %s", stage)
        return True

    async def _end_streams_of_others(self, ensemble: str) -> None:
        """Have the engine end the requests of other frontends too.

        Triton sends their outputs to the dead detokenizer process: it fails them one after the other, a second each.
        """
        try:
            await self._triton.fail_streams(ensemble)
        except APIError as exc:
            logger.warning("the engine of %s did not end its streams: %s", ensemble, exc.message)

    async def _answers(self, stage: str) -> bool:
        ensemble = ensemble_of_stage(stage)
        try:
            if stage == stage_name(ensemble, "engine"):
                await self._check_engine(ensemble)
            else:
                await check_text_stage(self._triton, stage, deadline_s=STATS_TIMEOUT_S)
        except APIError:
            return False
        return True

    def _poll(self, ensembles: Set[str]) -> None:
        """Poll the engines of models that may not leave."""
        for ensemble in sorted(ensembles):
            if self._leases.is_held(ensemble_to_model_id(ensemble)):
                self._start(ensemble, self.poll(ensemble))

    def _end_streams(self, stage: str, *, spared_epoch: int | None = None) -> None:
        error = EngineFailed("The model broke down while it worked on this request.")
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
