"""What to make of how engines answer, and which stages to reload when."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from frontend.errors import APIError, ModelNotReady, NotFound, StageUnhealthy, TritonUnreachable
from model_repository.contract import slug_of_stage

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
