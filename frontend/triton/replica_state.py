"""The state of one replica of a model, and the only place that decides about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

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
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import stage_name

MAX_FAILURES = 5  # failed requests in a row, after which a replica gets no more
TRIAL_PAUSE_S = 1.0  # from the last failure, or a failed trial, to the next trial
MAX_MISSES = 2  # polls in a row without an answer; after them an engine counts as lost
# The pause between two reloads of a stage, unless the first one took longer: a stage that dies at once, maybe after
# minutes of loading, must not keep its machine busy.
RELOAD_PAUSE_S = 5.0


class State(StrEnum):
    """The state of a replica, in the words of /health/ready. Only a ready one gets requests."""

    READY = "ready"
    DRAINING = "draining"  # its engine wants no more requests
    FAILING = "failing"  # a trial must make a token first
    RECOVERING = "recovering"  # stages need a reload first


class Verdict(StrEnum):
    """The meaning of one poll of an engine for its streams."""

    FINE = "fine"
    RESTARTED = "restarted"  # a new epoch: the old sequences are gone, and the engine is loaded again
    UNLOADED = "unloaded"  # the sequences have ended, and the engine needs no reload
    LOST = "lost"  # the sequences are gone, and the engine needs a reload


class ReplicaState:
    """Decides whether a replica gets requests, and when it is tried or a stage of it is reloaded. Pure.

    ready, draining: the last answer of the engine decides between them.
    -> failing: requests failed in a row, or one lost the connection to Triton.
    -> recovering: a check or a request found a stage dead or hanging.
    recovering -> failing: the stages are repaired.
    failing -> ready, draining: a trial made a token.

    Args:
        ensemble: the replica's name in Triton.
        clock: monotonic seconds.
    """

    def __init__(self, ensemble: str, clock: Callable[[], float]) -> None:
        self.state = State.READY
        self.lost: set[str] = set()  # stages that need a reload, by their Triton names; empty unless recovering
        self.epoch: int | None = None  # of the engine's last answer; None: it may not be loaded
        self.asked_s = -math.inf  # when that was asked for, by the clock
        self._engine = stage_name(ensemble, "engine")
        self._clock = clock
        self._num_failures = self._num_misses = 0
        self._trial_at_s = 0.0  # when failing
        self._repaired_at_s: dict[str, float] = {}  # key: stage
        self._reload_at_s: dict[str, float] = {}  # key: stage

    def succeeded(self) -> None:
        """Note a completion. It ends no other state: it may have begun before that."""
        self._num_failures = 0

    def failed(self, error: APIError) -> bool:
        """Note a failed request; return whether the replica is failing from now on. `lose` is for dead stages."""
        match error:
            case InvalidRequest() | RateLimited() | ReaderTooSlow() | NotFound() | ModelNotReady() | Draining():
                return False  # no fault of the server
            case QueueFull() | TritonTimeout():
                return False  # a long text may take longer to tokenize; the health monitor judges silence
            case TritonUnreachable():
                self._num_failures = MAX_FAILURES
            case _:
                self._num_failures += 1
        if self._num_failures < MAX_FAILURES or self.state not in (State.READY, State.DRAINING):
            return False
        self.state, self._trial_at_s = State.FAILING, self._clock() + TRIAL_PAUSE_S
        return True

    @property
    def is_trial_due(self) -> bool:
        """Whether the replica should now make a token for a trial."""
        return self.state is State.FAILING and self._clock() >= self._trial_at_s

    def end_trial(self, stats: EngineStats | None) -> None:
        """Note the statistics of the engine from a successful trial; None: it failed."""
        if self.state is State.FAILING:
            self._num_failures = 0
            self._trial_at_s = self._clock() + TRIAL_PAUSE_S
            if stats is not None:
                self.state = State.DRAINING if stats.is_draining else State.READY

    def answered(self, stats: EngineStats, since: float) -> Verdict:
        """Judge the answer to a poll of the engine, which began at `since` (of the clock)."""
        if not self._is_news(self._engine, since):
            return Verdict.FINE
        is_restarted = self.epoch is not None and self.epoch != stats.epoch
        self.epoch, self.asked_s, self._num_misses = stats.epoch, since, 0
        if self.state in (State.READY, State.DRAINING):
            self.state = State.DRAINING if stats.is_draining else State.READY
        return Verdict.RESTARTED if is_restarted else Verdict.FINE

    def missed(self, error: APIError, since: float) -> Verdict:
        """Judge an error in place of the answer to a poll."""
        if not self._is_news(self._engine, since):
            return Verdict.FINE
        if isinstance(error, TritonUnreachable):
            self.disconnected()
            return Verdict.FINE
        if isinstance(error, ModelNotReady | NotFound):
            # An operator unloaded it, or it is still loading.
            is_known, self.epoch, self._num_misses = self.epoch is not None, None, 0
            return Verdict.UNLOADED if is_known else Verdict.FINE
        self._num_misses += 1
        if self._num_misses < MAX_MISSES and not isinstance(error, StageUnhealthy):
            return Verdict.FINE
        self.lose(self._engine, since)
        return Verdict.LOST

    def disconnected(self) -> None:
        """Note that Triton is away. The streams broke with the connection; later ones belong to a later epoch."""
        self.epoch, self._num_misses = None, 0

    def lose(self, stage: str, since: float) -> bool:
        """Have a stage reloaded that a request or a check, begun at `since`, found dead or hanging.

        Returns:
            Whether this is news: its reload is not planned, and none has ended since then.
        """
        if not self._is_news(stage, since):
            return False
        self.lost.add(stage)
        self.state = State.RECOVERING
        return True

    def reloads_due(self) -> list[str]:
        """Return the stages that should be reloaded now."""
        now = self._clock()
        return sorted(stage for stage in self.lost if now >= self._reload_at_s.get(stage, now))

    def end_reload(self, stage: str, began_at: float, *, is_repaired: bool) -> None:
        """Note the end of a reload. After a repair, failures of earlier requests and checks no longer count."""
        now = self._clock()
        self._reload_at_s[stage] = now + max(RELOAD_PAUSE_S, now - began_at)
        if not is_repaired:
            return
        self.lost.discard(stage)  # it is not there any more if the model was unloaded meanwhile
        self._repaired_at_s[stage] = now
        if stage == self._engine:
            self.disconnected()  # the next epoch is a new engine's, not a restart
        if not self.lost:
            self.state, self._trial_at_s = State.FAILING, now

    def _is_news(self, stage: str, since: float) -> bool:
        return stage not in self.lost and since >= self._repaired_at_s.get(stage, since)


class ReplicaStates(dict[str, ReplicaState]):
    """The replicas of all models in one Triton, by ensemble. One without failures is ready."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def __missing__(self, ensemble: str) -> ReplicaState:
        self[ensemble] = ReplicaState(ensemble, self._clock)
        return self[ensemble]
