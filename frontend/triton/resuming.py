"""Decides when and where completions go on after the death of their engine. It finds a request that ends engines.

Nobody knows which of the requests in an engine has ended it. So they go on in groups: the next group follows when the
engine has survived the first tokens of this one. Those of a group that dies go on one by one, while no new request
begins at the engine. The one that dies then has ended it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from frontend.errors import APIError

MIN_GROUP = 4  # completions
PROOF_TOKENS, PROOF_S = 16, 2.0  # after which a completion counts as harmless; an engine is fifteen steps ahead at most
QUIET_S = 1.0  # without a new request, before one is tried alone
MAX_ALONE_S = 5.0  # for which new requests keep away, in each pause of a sender
PAUSE_S, MAX_PAUSE_S = 60.0, 960.0  # between two such times of a sender; doubled by each of its requests that was found
_POLL_S = 0.05
_KEPT_S = 600.0  # after which a dead replica does not come back


class Place(Protocol):
    """A replica of a model."""

    @property
    def quiet_s(self) -> float:
        """The seconds since the last request began."""

    def was_seen_after(self, time_s: float) -> bool:
        """Whether its engine has answered a question that was asked later."""


@dataclass(slots=True, eq=False)
class Suspect:
    """A completion that may have ended its engine."""

    sender: str
    num_deaths: int = 0  # that it was in, since it counted as harmless
    num_tokens: int = 0  # since it last began
    is_over: bool = False  # or has been left


@dataclass(slots=True)
class _Trial:
    suspects: Sequence[Suspect]
    until_s: float
    is_alone: bool

    def is_over(self, now: float) -> bool:
        return now >= self.until_s or all(each.is_over or each.num_tokens >= PROOF_TOKENS for each in self.suspects)


@dataclass(slots=True, eq=False)
class Waiting[P]:
    """A completion without a place."""

    suspect: Suspect
    fits: Callable[[P], bool]  # whether a replica can serve it


@dataclass(slots=True)
class _Quarantine:
    """A place that new requests keep away from."""

    sender: str
    since_s: float


class Line[P: Place]:
    """The completions of one model that wait for a place. Pure.

    Args:
        ready: returns the replicas that may get requests.
        clock: monotonic seconds.
    """

    def __init__(self, ready: Callable[[], Iterable[P]], clock: Callable[[], float]) -> None:
        self._ready, self._clock = ready, clock
        self.waiting: list[Waiting[P]] = []
        self._num_suspects = 0  # that waited at most, since none did
        self._trials: dict[P, _Trial] = {}
        self._quarantines: dict[P, _Quarantine] = {}
        self._died_s: dict[P, float] = {}  # the last time
        self._due_s: dict[str, float] = {}  # when a sender's requests may be tried alone again
        self._pause_s: dict[str, float] = {}  # of the senders with a request that was found

    @property
    def is_busy(self) -> bool:
        """Whether `assign` has something to do, now or later."""
        return bool(self.waiting or self._quarantines)

    def takes_new(self, place: P) -> bool:
        """Whether new requests may begin at a place."""
        return place not in self._quarantines

    def died(self, suspect: Suspect, place: P) -> bool:
        """Note that an engine has died with a completion; return whether this one has ended it."""
        now, trial = self._clock(), self._trials.get(place)
        is_tried = trial is not None and suspect in trial.suspects and not trial.is_over(now)
        suspect.num_deaths += 1
        self._died_s = {each: died_s for each, died_s in self._died_s.items() if now < died_s + _KEPT_S} | {place: now}
        if trial is None or not is_tried:
            return False
        del self._trials[place]
        if trial.is_alone:
            pause_s = self._pause_s.get(suspect.sender, PAUSE_S)
            self._pause_s[suspect.sender] = min(2 * pause_s, MAX_PAUSE_S)
            for each in self.waiting:  # it explains their deaths
                each.suspect.num_deaths = min(each.suspect.num_deaths, 1)
        return trial.is_alone

    def assign(self) -> list[tuple[Waiting[P], P]]:
        """Return those that may go on now, with their places; they wait no longer."""
        now = self._clock()
        for place in [each for each, found in self._quarantines.items() if now >= found.since_s + MAX_ALONE_S]:
            self._end_quarantine(place, now)
        return [(each, place) for place in self._ready() for each in self._next(place, now)]

    def _next(self, place: P, now: float) -> list[Waiting[P]]:
        """Take those that may go on at a place from the line."""
        if place in self._died_s:
            if not place.was_seen_after(self._died_s[place]):
                return []
            del self._died_s[place]
        if (trial := self._trials.get(place)) is not None:
            waiting = {each.suspect for each in self.waiting}  # they have lost the place without a death
            trial.suspects = [each for each in trial.suspects if each not in waiting]
            if trial.is_over(now):
                del self._trials[place]
                for suspect in trial.suspects:
                    suspect.num_deaths = 0
        fitting = [each for each in self.waiting if each.fits(place)]
        suspects = [] if place in self._trials else self._suspects(fitting, place, now)
        fresh = [each for each in fitting if not each.suspect.num_deaths] if self.takes_new(place) else []
        taken = {*fresh, *suspects}
        self.waiting = [each for each in self.waiting if each not in taken]
        for each in taken:
            each.suspect.num_tokens = 0
        return fresh + suspects

    def _suspects(self, fitting: Sequence[Waiting[P]], place: P, now: float) -> list[Waiting[P]]:
        """Begin the next trial at a place, if one is due."""
        alone = [each for each in fitting if each.suspect.num_deaths >= 2 and self._may_be_alone(each, place, now)]
        if alone:
            quarantine = self._quarantines.setdefault(place, _Quarantine(alone[0].suspect.sender, now))
            is_quiet = max(now - quarantine.since_s, place.quiet_s) >= QUIET_S
            group = alone[:1] if is_quiet else []
        else:
            self._end_quarantine(place, now)
            group = [each for each in fitting if each.suspect.num_deaths == 1]
            self._num_suspects = max(self._num_suspects, len(group)) if group else 0
            del group[max(MIN_GROUP, math.isqrt(self._num_suspects)) :]
        if group:
            self._trials[place] = _Trial([each.suspect for each in group], now + PROOF_S, is_alone=bool(alone))
        return group

    def _may_be_alone(self, each: Waiting[P], place: P, now: float) -> bool:
        quarantine, sender = self._quarantines.get(place), each.suspect.sender
        if quarantine is not None:
            return quarantine.sender == sender
        return now >= self._due_s.get(sender, now)

    def _end_quarantine(self, place: P, now: float) -> None:
        if (quarantine := self._quarantines.pop(place, None)) is not None:
            self._due_s[quarantine.sender] = now + self._pause_s.get(quarantine.sender, PAUSE_S)
            self._due_s = {sender: due_s for sender, due_s in self._due_s.items() if now < due_s + MAX_PAUSE_S}
            self._pause_s = {sender: each for sender, each in self._pause_s.items() if sender in self._due_s}


class Resuming[P: Place]:
    """Gives the completions of one model their places.

    Args:
        ready: see Line.
        clock: monotonic seconds.
    """

    def __init__(self, ready: Callable[[], Iterable[P]], clock: Callable[[], float]) -> None:
        self.line = Line(ready, clock)
        self._found: dict[Suspect, asyncio.Future[P]] = {}
        self._task: asyncio.Task[None] | None = None

    async def place(self, suspect: Suspect, fits: Callable[[P], bool], within_s: float, late: APIError) -> P:
        """Wait for a place.

        Args:
            fits: see Waiting.
            late: raised after this time.

        Raises:
            APIError: no place was found in time.
        """
        entry = Waiting(suspect, fits)
        self.line.waiting.append(entry)
        found = self._found[suspect] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            async with asyncio.timeout(within_s):
                given: P = await found
                return given
        except TimeoutError:
            raise late from None
        finally:
            del self._found[suspect]
            if entry in self.line.waiting:
                self.line.waiting.remove(entry)

    def end_all(self, error: APIError) -> None:
        """End all waits with an error."""
        for found in self._found.values():
            if not found.done():
                found.set_exception(error)

    async def _run(self) -> None:
        while self.line.is_busy:
            for entry, place in self.line.assign():
                found = self._found[entry.suspect]
                if not found.done():  # else its time is over
                    found.set_result(place)
            await asyncio.sleep(_POLL_S)
