"""The state of one model, and the clients that wait for it or hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from model_repository.arbiter.turns import Turn
from model_repository.arbiter.types import OPERATOR, Memory, OfferedModel
from model_repository.contract.arbiter import State

# A model in use keeps its turn for this time from its first grant, though another model waits for its memory.
TURN_LOADS = 2.0  # of the time that both models together take to load
MIN_TURN_S = 5.0
MAX_TURN_S = 60.0  # less than requests wait for a load: a turn before it must not fail them


@dataclass(slots=True)
class Want:
    key: str  # of the client's oldest waiting request
    since_s: float


@dataclass(slots=True)
class Lease:
    number: int
    is_busy: bool = True  # whether the client has requests in flight
    is_recalled: bool = False


@dataclass(slots=True, eq=False)
class Model:
    offered: OfferedModel
    load_s: float  # of the last load
    keep_alive_s: float  # of the last use
    state: State = State.UNLOADED
    wants: dict[str, Want] = field(default_factory=dict)  # key: client
    leases: dict[str, Lease] = field(default_factory=dict)  # key: client
    turn: Turn = field(default_factory=lambda: Turn(OPERATOR, -math.inf))  # the last one
    used_s: float = -math.inf  # its last use or load
    is_leaving: bool = False  # loaded, but its leases are recalled, and further wants wait
    is_unload_wanted: bool = False  # by an operator
    num_passed: int = 0  # loads of other models while it waits
    num_failures: int = 0  # loads in a row
    cause: str = ""  # of the last failure
    retry_at_s: float = -math.inf

    @property
    def name(self) -> str:
        return self.offered.name

    @property
    def memory(self) -> Memory:
        return self.offered.memory

    @property
    def is_loadable(self) -> bool:
        return self.state in (State.UNLOADED, State.FAILED)

    @property
    def is_evictable(self) -> bool:
        return self.state is State.LOADED and not self.offered.is_pinned

    @property
    def is_held(self) -> bool:
        return bool(self.leases)

    @property
    def is_busy(self) -> bool:
        return any(lease.is_busy for lease in self.leases.values())

    @property
    def expires_s(self) -> float:
        """Time at which the model is unloaded for want of use; inf while it is in use, or not loaded."""
        if not self.is_evictable or self.is_busy or self.wants:
            return math.inf
        return self.used_s + self.keep_alive_s

    def is_over(self, now: float) -> bool:
        """Return whether the model must leave, though no other waits for its memory."""
        return self.state is State.LOADED and (self.is_unload_wanted or self.expires_s <= now)

    def turn_ends_s(self, follower: Model) -> float:
        """Time from which another model may have the memory; -inf if the model has no work."""
        if not self.is_busy:
            return -math.inf
        turn_s = TURN_LOADS * (self.load_s + follower.load_s)
        return self.turn.granted_s + min(MAX_TURN_S, max(MIN_TURN_S, turn_s))
