"""The models that a machine holds, and the only place that decides about them.

Clients are frontend processes. A client without the lease of a model wants it, and its requests wait. With the lease it
sends requests freely, until the arbiter recalls the lease. A recalled client begins no further request, and releases
the lease when its last one has ended. Only a model without leases is unloaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from model_repository.arbiter.model import Lease, Model, Want
from model_repository.arbiter.turns import Turns
from model_repository.arbiter.types import (
    OPERATOR,
    Abort,
    Action,
    Grant,
    Load,
    LoadFailed,
    Memory,
    ModelTooLarge,
    OfferedModel,
    Recall,
    Refuse,
    Status,
    Unload,
    total_of,
)
from model_repository.contract.arbiter import State

MAX_PASSED = 4  # loads of other models that a waiting model lets pass for the sake of fair keys
FIRST_PAUSE_S = 5.0  # after a load that failed; it doubles with each further one
MAX_PAUSE_S = 300.0
_NOTHING = Memory()


class Arbiter:
    """Decides which models are loaded, for whom, and for how long. Pure: each event returns the actions that follow.

    unloaded, failed -> loading: a client waits, and the memory has room.
    loading -> loaded: all that wait get a lease.
    loading -> failed: all that wait are refused; until a pause has passed, all others too.
    loading -> unloading: the last client that waited has left.
    loaded -> unloading: the memory is needed, keep_alive has passed or an operator said so, and all leases are back.
    loaded -> unloaded: the model was lost.

    Of the models that wait without room one has the next turn: memory is made for it, and only models that fit beside
    it as well may pass it.

    Args:
        models: all that can be loaded, by different names.
        total_bytes: bound on the RAM of all models that are loaded, loading and unloading. A share of each device is
            the bound on its memory.
        clock: monotonic seconds.
    """

    def __init__(self, models: Iterable[OfferedModel], total_bytes: int, clock: Callable[[], float]) -> None:
        self.due_s: float | None = None  # time of the next tick; None: there is nothing to do before the next event
        self._models = {each.name: Model(each, each.load_s, each.keep_alive_s) for each in models}
        self._total_bytes = total_bytes
        self._clock = clock
        self._next: Model | None = None  # the waiting model that has the next turn
        self._turns = Turns()
        self._num_leases = 0  # since the start
        self._ordered: list[Action] = []  # during an event

    def knows(self, name: str) -> bool:
        """Whether a model can be loaded."""
        return name in self._models

    # --- events of clients ---

    def want(self, client: str, name: str, key: str, waited_s: float = 0.0) -> list[Action]:
        """Have a client wait for a model. It may want again when the key of its oldest request has changed.

        Args:
            client: its id.
            name: of the model.
            key: the name of the API key of the client's oldest waiting request.
            waited_s: time for which that request has waited already.
        """
        model, now = self._models[name], self._clock()
        pinned = [each for each in self._models.values() if each.offered.is_pinned and each is not model]
        if lacking := sum((each.memory for each in pinned), model.memory).lacking(self._total):
            names, needed_bytes = tuple(each.name for each in pinned), model.memory.of(lacking[0])
            error = ModelTooLarge(needed_bytes, self._total.of(lacking[0]), names, lacking[0])
            self._ordered.append(Refuse(client, name, error))
        elif model.state is State.FAILED and now < model.retry_at_s and client != OPERATOR:
            self._ordered.append(Refuse(client, name, LoadFailed(model.cause, model.retry_at_s - now)))
        else:
            model.wants[client] = Want(key, now - waited_s)
        return self._decide()

    def unwant(self, client: str, name: str) -> list[Action]:
        """Note that the last waiting request of a client has left. A grant on its way counts as busy until `used`."""
        self._models[name].wants.pop(client, None)
        return self._decide()

    def used(self, client: str, name: str, *, is_busy: bool, keep_alive_s: float | None = None) -> list[Action]:
        """Note that a client with a lease began requests or ended its last one. A client may report both late.

        Args:
            client: its id.
            name: of the model.
            is_busy: whether it has requests in flight.
            keep_alive_s: of the latest request, until the next use; None: the model's own.
        """
        model = self._models[name]
        if (lease := model.leases.get(client)) is not None:
            now = self._clock()
            lease.is_busy, model.used_s = is_busy, now
            if is_busy:  # a model that was lent has no grant
                model.turn.granted_s = min(model.turn.granted_s, now)
            model.keep_alive_s = model.offered.keep_alive_s if keep_alive_s is None else keep_alive_s
        return self._decide()

    def lend(self, client: str, name: str) -> list[Action]:
        """Give a client without requests the lease of a loaded model, so that its first request waits for nothing."""
        model = self._models[name]
        if model.state is State.LOADED and not model.is_leaving and client not in model.leases:
            self._give(model, client, is_busy=False)
        return self._decide()

    def release(self, client: str, name: str, number: int) -> list[Action]:
        """End a lease, unless a later one has taken its place."""
        model = self._models[name]
        if client in model.leases and model.leases[client].number == number:
            self._end_lease(model, client)
        return self._decide()

    def gone(self, client: str) -> list[Action]:
        """Forget a client that has lost its connection."""
        for model in self._models.values():
            model.wants.pop(client, None)
            self._end_lease(model, client)
        return self._decide()

    # --- events of an operator ---

    def load(self, name: str) -> list[Action]:
        """Have a model loaded, as if a client wanted it that does not leave."""
        return self.want(OPERATOR, name, OPERATOR)

    def unload(self, name: str) -> list[Action]:
        """Have a model unloaded, pinned or not. The clients that wait for it now get it first."""
        model = self._models[name]
        model.wants.pop(OPERATOR, None)
        model.is_unload_wanted = model.state in (State.LOADING, State.LOADED)
        return self._decide()

    # --- events of the driver ---

    def offer(self, models: Iterable[OfferedModel]) -> list[Action]:
        """Take the list of all models that can be loaded. A loaded model that is not in it stays until its unload."""
        by_name = {each.name: each for each in models}
        for model in list(self._models.values()):
            if model.is_loadable and model.name not in by_name:
                del self._models[model.name]
                error = LoadFailed("it is not in the repository", 0.0)
                self._ordered += [Refuse(client, model.name, error) for client in model.wants]
        for offered in by_name.values():
            known = self._models.get(offered.name)
            if known is None:
                self._models[offered.name] = Model(offered, offered.load_s, offered.keep_alive_s)
            elif known.is_loadable:
                known.offered = offered
        return self._decide()

    def loaded(self, name: str) -> list[Action]:
        """Note the end of a load, or a model that was loaded without the arbiter, such as before its start."""
        model, now = self._models[name], self._clock()
        if model.is_loadable:
            self._begin_turn(model, State.LOADED, OPERATOR, now)
        elif model.state is State.LOADING:
            model.load_s = now - model.turn.began_s
        if model.state is not State.UNLOADING:  # aborted just before its end
            model.state, model.num_failures, model.used_s = State.LOADED, 0, now
            model.keep_alive_s = model.offered.keep_alive_s
        return self._decide()

    def load_failed(self, name: str, cause: str) -> list[Action]:
        """Note a failed load. The clients get the cause, so it has no path."""
        model, now = self._models[name], self._clock()
        if model.state is not State.LOADING:
            return self._decide()  # aborted just before its end
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**model.num_failures)
        model.num_failures, model.cause, model.retry_at_s = model.num_failures + 1, cause, now + pause_s
        self._end_turn(model, State.FAILED, now)
        self._ordered += [Refuse(client, name, LoadFailed(cause, pause_s)) for client in model.wants]
        model.wants.clear()
        return self._decide()

    def unloaded(self, name: str) -> list[Action]:
        model = self._models[name]
        if model.state is State.UNLOADING:
            model.state = State.UNLOADED
        return self._decide()

    def lost(self, name: str) -> list[Action]:
        """Note that a loaded model is no longer there: its engine died, or somebody else unloaded it."""
        model = self._models[name]
        if model.state is State.LOADED:  # other states end by an answer of the driver
            self._recall(model)
            for client in list(model.leases):
                self._end_lease(model, client)
            self._end_turn(model, State.UNLOADED, self._clock())
        return self._decide()

    def tick(self) -> list[Action]:
        """Note that time has passed, at the latest at `due_s`."""
        return self._decide()

    # --- decisions ---

    def status(self) -> dict[str, Status]:
        """Return the status of each model, by name."""
        positions = {model.name: place for place, model in enumerate(self._line(self._clock()), start=1)}
        return {
            model.name: Status(
                model.state,
                model.offered.size_bytes,
                model.used_s,
                model.expires_s,
                len(model.wants),
                model.is_busy,
                model.cause if model.state is State.FAILED else "",
                positions.get(model.name, 0 if model.wants else None),
            )
            for model in self._models.values()
        }

    def _decide(self) -> list[Action]:
        now = self._clock()
        self._grant(now)  # first: a model that was loaded for a client is granted before it can be recalled
        self._abort_loads(now)
        victims, evict_at_s = self._start_loads(now)
        self._start_unloads(now, victims if evict_at_s <= now else [])
        self._grant(now)  # models that no longer have to leave
        allowed = [
            self._turns.may_load_at_s(want.key, now) for model in self._line(now) for want in model.wants.values()
        ]
        kept = [model.expires_s for model in self._models.values()]
        self.due_s = min((time for time in (evict_at_s, *allowed, *kept) if now < time < math.inf), default=None)
        actions, self._ordered = self._ordered, []
        return actions

    def _grant(self, now: float) -> None:
        for model in self._models.values():
            if model.state is not State.LOADED or model.is_leaving or not model.wants:
                continue
            for client in model.wants:
                if client != OPERATOR:
                    self._give(model, client, is_busy=True)
                    model.turn.granted_s = min(model.turn.granted_s, now)
                    model.used_s, model.keep_alive_s = now, model.offered.keep_alive_s
            model.wants.clear()

    def _give(self, model: Model, client: str, *, is_busy: bool) -> None:
        self._num_leases += 1
        model.leases[client] = Lease(self._num_leases, is_busy)
        self._ordered.append(Grant(client, model.name, self._num_leases, is_busy))

    def _abort_loads(self, now: float) -> None:
        for model in self._models.values():
            if not model.wants:
                model.num_passed = 0
                if model.state is State.LOADING:
                    self._end_turn(model, State.UNLOADING, now)
                    self._ordered.append(Abort(model.name))

    def _start_loads(self, now: float) -> tuple[list[Model], float]:
        """Start the loads that have room.

        Returns:
            The models that must leave for the next turn, and the time from which they may; inf if there are none.
        """
        line = self._line(now)
        self._next, victims = None, list[Model]()
        for place, model in enumerate(line):
            payer = self._payer(model, now)
            if payer is None or not model.is_loadable:
                continue
            has_room = model.memory.fits_in(self._room())
            if self._next is None and not has_room:
                self._next, victims = model, self._victims(model, now)
            elif has_room and (
                self._next is None or model.memory.fits_in(self._later_room(victims, now) - self._next.memory)
            ):
                self._begin_turn(model, State.LOADING, payer.key, now)
                self._ordered.append(Load(model.name))
                for other in line[place + 1 :]:
                    other.num_passed += self._next is None and self._payer(other, now) is not None
        if self._next is None or not victims:
            return [], math.inf
        return victims, max(victim.turn_ends_s(self._next) for victim in victims)

    def _start_unloads(self, now: float, victims: list[Model]) -> None:
        """Recall the leases of all models that must leave, and unload those without leases."""
        for model in self._models.values():
            model.is_leaving = model in victims or model.is_over(now)
            if model.is_leaving:
                self._recall(model)
            if model.is_leaving and not model.is_held:
                self._end_turn(model, State.UNLOADING, now)
                self._ordered.append(Unload(model.name))

    def _victims(self, follower: Model, now: float) -> list[Model]:
        """Return the models that must leave before another has room; none while this cannot suffice.

        Idle models leave first, of these the least recently used one, then those whose turn ends first. A model without
        memory of a missing kind stays.
        """
        missing = follower.memory - self._later_room([], now)
        evictable = [model for model in self._models.values() if model.is_evictable and not model.is_over(now)]
        victims = list[Model]()
        # Of idle models, one that is leaving already comes first: otherwise more would be recalled than needed.
        for model in sorted(evictable, key=lambda each: (each.turn_ends_s(follower), not each.is_leaving, each.used_s)):
            if any(model.memory.of(kind) for kind in missing.lacking(_NOTHING)):
                victims.append(model)
                missing -= model.memory
        for model in victims[::-1]:
            if (missing + model.memory).fits_in(_NOTHING):  # a larger one that came later makes it unneeded
                victims.remove(model)
                missing += model.memory
        return victims if missing.fits_in(_NOTHING) else []

    def _line(self, now: float) -> list[Model]:
        """Return the models that wait for a load, in the order of their turns."""

        def rank(model: Model) -> tuple[bool, float, float]:
            ranks = [self._rank(want, now) for want in model.wants.values()]
            if model.num_passed >= MAX_PASSED:
                ranks = [(-1.0, since_s) for _, since_s in ranks]  # before all others, in order of arrival
            return (model is not self._next, *min(ranks))

        waiting = (model for model in self._models.values() if model.wants and model.state is not State.LOADING)
        return sorted(waiting, key=rank)

    def _rank(self, want: Want, now: float) -> tuple[float, float]:
        return self._turns.recent_s(want.key, now), want.since_s

    def _payer(self, model: Model, now: float) -> Want | None:
        """Return the first want with a key that may cause a load; None if there is none."""
        wants = (want for want in model.wants.values() if self._turns.may_load_at_s(want.key, now) <= now)
        return min(wants, key=lambda want: self._rank(want, now), default=None)

    @property
    def _total(self) -> Memory:
        return total_of((model.offered for model in self._models.values()), self._total_bytes)

    def _room(self) -> Memory:
        held = (State.LOADING, State.LOADED, State.UNLOADING)
        return self._total - sum((model.memory for model in self._models.values() if model.state in held), _NOTHING)

    def _later_room(self, victims: list[Model], now: float) -> Memory:
        """Return the room when some victims, and all models that leave anyway, have left."""
        models = self._models.values()
        leaving = [model for model in models if model.state is State.UNLOADING or model.is_over(now)]
        return sum((model.memory for model in leaving + victims), self._room())

    def _recall(self, model: Model) -> None:
        for client, lease in model.leases.items():
            if not lease.is_recalled:
                lease.is_recalled = True
                self._ordered.append(Recall(client, model.name, lease.number))

    def _end_lease(self, model: Model, client: str) -> None:
        lease = model.leases.pop(client, None)
        if lease is not None and lease.is_busy:
            model.used_s = self._clock()

    def _begin_turn(self, model: Model, state: State, key: str, now: float) -> None:
        model.state, model.num_passed, model.turn = state, 0, self._turns.begin(key, now)

    def _end_turn(self, model: Model, state: State, now: float) -> None:
        model.state, model.turn.ended_s = state, now
        model.is_unload_wanted = False
