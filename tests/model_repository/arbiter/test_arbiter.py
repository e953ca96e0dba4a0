"""The arbiter of models on demand: each rule alone, then random lives of models, and faults that these must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from model_repository.arbiter.arbiter import FIRST_PAUSE_S, MAX_PASSED, MAX_PAUSE_S, Arbiter
from model_repository.arbiter.model import MAX_TURN_S, MIN_TURN_S, TURN_LOADS, Model
from model_repository.arbiter.turns import MAX_RECENT_LOADS, RECENT_S, Turn
from model_repository.arbiter.types import (
    OPERATOR,
    Abort,
    Action,
    Grant,
    Load,
    LoadFailed,
    ModelTooLarge,
    OfferedModel,
    Recall,
    Refuse,
    Unload,
)
from model_repository.contract.arbiter import State
from model_repository.system.devices import DeviceUse

TOTAL_BYTES = 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine(Arbiter):
    """An arbiter with a clock of its own, and short forms of common events."""

    def __init__(self, *models: OfferedModel) -> None:
        self.clock = Clock()
        super().__init__(models, TOTAL_BYTES, self.clock)

    def state(self, name: str) -> State:
        return self.status()[name].state

    def serve(self, client: str, name: str, key: str = "key") -> int:
        """Have a model loaded for a client that waits, and return the number of the lease."""
        assert Load(name) in self.want(client, name, key)
        return self.end_load(name)

    def end_load(self, name: str) -> int:
        return next(each.lease for each in self.loaded(name) if isinstance(each, Grant))

    def pass_to(self, due_s: float | None) -> list[Action]:
        assert due_s is not None
        self.clock.now = due_s
        return self.tick()

    def pass_time(self, seconds: float) -> list[Action]:
        return self.pass_to(self.clock.now + seconds)


def served(name: str, size_bytes: int = 6, **facts) -> OfferedModel:
    return OfferedModel(name, size_bytes, **facts)


def on_card(used_bytes: int) -> dict[str, DeviceUse]:
    """A part of a device of which models may hold 9 bytes."""
    return {"CUDA0": DeviceUse(description="NVIDIA", used_bytes=used_bytes, total_bytes=10)}


A, B = served("a"), served("b")  # they do not fit together
SMALL = served("small", 4)


def test_a_device_has_the_room_of_the_plan():
    """Other programs may hold a part of its memory."""
    use = DeviceUse(description="NVIDIA", used_bytes=4, total_bytes=10, room_bytes=5)
    one, two = (served(name, 0, devices={"CUDA0": use}) for name in "ab")
    machine = Machine(one, two)
    machine.serve("x", "a")
    assert machine.want("y", "b", "key") == []


# --- one load, and one lease for each client ---


def test_all_clients_that_want_a_model_share_one_load():
    machine = Machine(A)
    assert machine.want("x", "a", "key") == [Load("a")]
    assert machine.want("y", "a", "other") == []
    assert machine.loaded("a") == [Grant("x", "a", 1), Grant("y", "a", 2)]


def test_a_want_of_a_loaded_model_is_granted_at_once():
    machine = Machine(A)
    machine.serve("x", "a")
    assert machine.want("y", "a", "key") == [Grant("y", "a", 2)]


def test_models_that_fit_together_load_at_the_same_time():
    machine = Machine(A, SMALL)
    assert machine.want("x", "a", "key") == [Load("a")]
    assert machine.want("x", "small", "key") == [Load("small")]


def test_a_load_that_no_client_wants_any_more_is_aborted_and_a_later_want_loads_again_when_its_memory_is_free():
    machine = Machine(A)
    machine.want("x", "a", "key")
    assert machine.unwant("x", "a") == [Abort("a")]
    assert machine.want("y", "a", "key") == []
    assert machine.unloaded("a") == [Load("a")]


@pytest.mark.parametrize("event", [lambda machine: machine.loaded("a"), lambda machine: machine.load_failed("a", "no")])
def test_a_load_that_ends_just_after_its_abort_changes_nothing_for_later_wants(
    event: Callable[[Machine], list[Action]],
):
    machine = Machine(A)
    machine.want("x", "a", "key")
    machine.unwant("x", "a")
    event(machine)
    assert [*machine.want("y", "a", "key"), *machine.unloaded("a")] == [Load("a")]


def test_an_old_release_does_not_end_a_later_lease():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.lost("a")
    machine.serve("x", "a")
    assert machine.release("x", "a", lease) == []
    assert machine.want("y", "b", "key") == []  # otherwise the model would be unloaded


# --- eviction ---


def test_a_model_is_unloaded_after_its_leases_and_its_memory_counts_until_then():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.used("x", "a", is_busy=False)
    assert machine.want("y", "b", "key") == [Recall("x", "a", lease)]
    assert machine.release("x", "a", lease) == [Unload("a")]
    assert machine.tick() == []
    assert machine.unloaded("a") == [Load("b")]


def test_the_least_recently_used_models_leave_and_only_as_many_as_needed():
    machine = Machine(served("old", 2), served("large", 5), served("new", 3), served("next", 5))
    for name in ("new", "old", "large"):
        machine.load(name)
        machine.loaded(name)
    machine.want("x", "new", "key")
    for name in ("old", "large", "new"):
        machine.clock.now += 1
        machine.used("x", name, is_busy=False)
    assert machine.want("y", "next", "key") == [Unload("large")]  # "old" alone is too small, and then not needed


def test_the_least_recently_used_of_like_models_leaves():
    machine = Machine(served("p", 5), served("q", 5), served("next", 5))
    for name in ("p", "q"):
        machine.serve("x", name)
        machine.clock.now += 1
    for name in ("q", "p"):
        machine.used("x", name, is_busy=False)
        machine.clock.now += 1
    assert machine.want("y", "next", "key") == [Recall("x", "q", 2)]


def test_an_idle_model_leaves_before_a_busy_one():
    machine = Machine(served("idle", 5), served("busy", 5), served("next", 5))
    machine.serve("x", "busy")
    machine.clock.now += 2 * MAX_TURN_S
    lease = machine.serve("x", "idle")
    machine.used("x", "idle", is_busy=False)
    assert machine.want("y", "next", "key") == [Recall("x", "idle", lease)]


def test_a_loading_model_is_not_evicted_and_is_granted_before_its_turn_ends():
    """Peers evicted a model that was loading, and one that was loaded for the very request that waited."""
    machine = Machine(A, B)
    machine.want("x", "a", "key")
    assert machine.want("y", "b", "key") == []
    assert machine.pass_time(10 * MAX_TURN_S) == []
    assert machine.loaded("a") == [Grant("x", "a", 1)]
    assert machine.tick() == []


def test_memory_is_not_freed_before_it_suffices():
    machine = Machine(served("idle", 4), served("loading", 6), served("all", 10))
    lease = machine.serve("x", "idle")
    machine.used("x", "idle", is_busy=False)
    machine.want("x", "loading", "key")
    assert machine.want("y", "all", "key") == []
    assert machine.load_failed("loading", "no")[1:] == [Recall("x", "idle", lease)]


def test_the_memory_of_a_model_that_leaves_anyway_counts_once():
    machine = Machine(served("expired", 3, keep_alive_s=1.0), served("idle", 4), served("next", 8))
    lease = machine.serve("x", "expired")
    machine.load("idle")
    machine.loaded("idle")
    machine.used("x", "expired", is_busy=False)
    assert machine.pass_to(machine.due_s) == [Recall("x", "expired", lease)]
    assert machine.want("y", "next", "key") == [Unload("idle")]


def test_a_late_report_of_a_recalled_client_has_no_second_model_recalled():
    machine = Machine(served("p", 5), served("q", 5), served("next", 5))
    for name in ("p", "q"):
        machine.serve("x", name)
        machine.used("x", name, is_busy=False)
        machine.clock.now += 1
    assert machine.want("y", "next", "key") == [Recall("x", "p", 1)]
    assert machine.used("x", "p", is_busy=False) == []


@pytest.mark.parametrize(("model", "pinned_bytes"), [(served("large", TOTAL_BYTES + 1), 0), (served("large", 6), 5)])
def test_a_model_that_does_not_fit_beside_the_pinned_ones_is_refused_at_once(model: OfferedModel, pinned_bytes: int):
    machine = Machine(model, served("pinned", pinned_bytes, is_pinned=True))
    error = ModelTooLarge(model.size_bytes, TOTAL_BYTES, ("pinned",))
    assert machine.want("x", "large", "key") == [Refuse("x", "large", error)]
    assert machine.status()["large"].num_waiting == 0


def test_a_model_that_does_not_fit_on_a_device_is_refused_with_its_name():
    machine = Machine(served("large", 1, devices=on_card(5)), served("pinned", 1, is_pinned=True, devices=on_card(6)))
    error = ModelTooLarge(5, 9, ("pinned",), "CUDA0")
    assert machine.want("x", "large", "key") == [Refuse("x", "large", error)]


@pytest.mark.parametrize("is_on_card", [False, True])
def test_only_models_with_memory_of_the_missing_kind_leave(is_on_card: bool):
    """The least recently used model would leave first."""
    models = {"ram": served("ram", 6), "card": served("card", 0, devices=on_card(6))}
    machine = Machine(*models.values(), served("next", 0, devices=on_card(6)) if is_on_card else served("next", 6))
    first, second = ("ram", "card") if is_on_card else ("card", "ram")
    for name in (first, second):
        machine.release("x", name, machine.serve("x", name))
        machine.clock.now += 1
    assert machine.want("y", "next", "key") == [Unload(second)]


def test_a_model_leaves_for_each_missing_kind():
    machine = Machine(served("ram", 6), served("card", 0, devices=on_card(6)), served("both", 6, devices=on_card(6)))
    for name in ("ram", "card"):
        machine.load(name)
        machine.loaded(name)
    assert machine.want("y", "both", "key") == [Unload("ram"), Unload("card")]


def test_a_pinned_model_is_not_evicted():
    machine = Machine(served("pinned", 4, is_pinned=True, keep_alive_s=1.0), A, B)
    machine.load("pinned")
    machine.loaded("pinned")
    machine.clock.now += 10
    machine.load("a")
    machine.loaded("a")
    assert machine.want("x", "b", "key") == [Unload("a")]


# --- turns ---


def test_a_busy_model_keeps_its_turn_while_another_waits():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    granted_s = machine.clock.now
    assert machine.want("y", "b", "key") == []
    assert machine.due_s == granted_s + MIN_TURN_S
    assert machine.pass_time(MIN_TURN_S / 2) == []
    assert machine.pass_to(machine.due_s) == [Recall("x", "a", lease)]


def test_a_busy_model_that_was_lent_has_an_end_of_its_turn_too():
    """A model of the start was never recalled while it was busy, and the others waited in vain."""
    machine = Machine(A, B)
    machine.loaded("a")
    assert machine.lend("x", "a") == [Grant("x", "a", 1, is_busy=False)]
    machine.used("x", "a", is_busy=True)
    began_s = machine.clock.now
    machine.want("y", "b", "key")
    assert machine.due_s == began_s + MIN_TURN_S
    assert machine.pass_to(machine.due_s) == [Recall("x", "a", 1)]


def test_a_later_client_does_not_prolong_a_turn():
    machine = Machine(A, B)
    machine.serve("x", "a")
    granted_s = machine.clock.now
    machine.want("y", "b", "key")
    machine.pass_time(MIN_TURN_S / 2)
    machine.want("z", "a", "key")
    machine.used("x", "a", is_busy=False)
    machine.tick()
    assert machine.due_s == granted_s + MIN_TURN_S


@pytest.mark.parametrize(("load_s", "turn_s"), [(0.1, MIN_TURN_S), (5.0, TURN_LOADS * 6.0), (100.0, MAX_TURN_S)])
def test_a_turn_is_as_long_as_the_loads_of_both_models_are_worth(load_s: float, turn_s: float):
    machine = Machine(A, served("b", load_s=1.0))
    machine.want("x", "a", "key")
    machine.clock.now += load_s
    machine.loaded("a")
    machine.want("y", "b", "key")
    assert machine.due_s == pytest.approx(machine.clock.now + turn_s)


def test_a_model_without_a_rival_is_not_recalled():
    machine = Machine(A, B, SMALL)
    machine.serve("x", "a")
    assert machine.want("y", "small", "key") == [Load("small")]
    assert machine.due_s is None
    assert machine.pass_time(10 * MAX_TURN_S) == []


def test_a_holder_without_work_is_recalled_at_once():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.want("y", "b", "key")
    assert machine.used("x", "a", is_busy=False) == [Recall("x", "a", lease)]


def test_an_idle_model_stays_while_the_turn_of_a_busy_one_must_end_too():
    machine = Machine(served("idle", 5), served("busy", 5), served("all", 10))
    machine.serve("x", "idle")
    machine.used("x", "idle", is_busy=False)
    machine.serve("x", "busy")
    assert machine.want("y", "all", "key") == []
    assert machine.pass_to(machine.due_s) == [Recall("x", "idle", 1), Recall("x", "busy", 2)]


def test_wants_of_a_model_that_is_recalled_wait_for_its_next_turn():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.want("y", "b", "key")
    machine.pass_to(machine.due_s)
    assert machine.want("x", "a", "key") == machine.want("z", "a", "key") == []
    machine.release("x", "a", lease)
    assert machine.unloaded("a") == [Load("b")]


def test_a_recalled_model_is_granted_again_when_its_rival_no_longer_waits():
    """A long answer would otherwise keep all further requests of its model waiting, for the sake of no other."""
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.want("y", "b", "key")
    machine.pass_to(machine.due_s)
    machine.want("x", "a", "key")
    assert machine.unwant("y", "b") == [Grant("x", "a", lease + 1)]
    assert machine.release("x", "a", lease) == []
    assert machine.pass_time(10 * MAX_TURN_S) == []


def test_a_model_passes_the_next_one_only_if_both_fit():
    machine = Machine(A, served("b", 7), served("c", 3), served("d", 4))
    machine.serve("x", "a")
    machine.want("y", "b", "key")
    assert machine.want("z", "d", "key") == []
    assert machine.want("z", "c", "key") == [Load("c")]


# --- fair keys ---


def line(machine: Machine) -> list[str]:
    """Return the waiting models in the order of their turns."""
    positions = {name: status.position for name, status in machine.status().items() if status.position}
    return sorted(positions, key=positions.__getitem__)


def test_the_waiting_key_with_the_shortest_recent_turns_is_next():
    machine = Machine(A, B, served("c"), served("d"))
    machine.serve("w", "a", "greedy")
    for name, key in (("d", "other"), ("b", "greedy"), ("c", "modest")):
        machine.clock.now += 1
        machine.want("x", name, key)
    assert line(machine) == ["d", "c", "b"]  # memory is made for the first one already


def test_of_keys_with_equal_turns_the_oldest_want_is_next():
    machine = Machine(A, B, served("c"), served("d"))
    machine.serve("w", "a", "first")
    machine.want("x", "d", "other")
    machine.want("x", "b", "second", waited_s=1.0)
    machine.want("x", "c", "third", waited_s=2.0)
    assert line(machine) == ["d", "c", "b"]


def test_turns_count_for_their_key_only_recently():
    machine = Machine(A, B, served("c"), served("d"))
    machine.serve("w", "a", "early")
    machine.clock.now += 30
    machine.unload("a")
    machine.gone("w")
    machine.unloaded("a")
    machine.clock.now += RECENT_S
    machine.serve("w", "a", "late")
    machine.clock.now += 1
    for name, key in (("d", "other"), ("b", "late"), ("c", "early")):
        machine.want("x", name, key)
    assert line(machine) == ["d", "c", "b"]


@pytest.mark.parametrize(("later_s", "expected"), [(1.0, ["d", "c", "b"]), (2 * RECENT_S, ["d", "b", "c"])])
def test_the_recent_part_of_a_long_turn_counts(later_s: float, expected: list[str]):
    machine = Machine(A, SMALL, B, served("c"), served("d"))
    machine.serve("w", "a", "first")
    machine.clock.now += 2 * RECENT_S
    machine.serve("w", "small", "second")
    machine.clock.now += later_s  # then both have had a turn of the same recent length
    for name, key in (("d", "other"), ("b", "first"), ("c", "second")):
        machine.clock.now += 1
        machine.want("x", name, key)
    assert line(machine) == expected


RIVALS = ["rival0", "rival1", "rival2", "rival3"]


class Contest(Machine):
    """A model waits, its key had a turn, and enough rivals always wait with new keys. A model's client has its name."""

    def __init__(self) -> None:
        super().__init__(*(served(name) for name in ("held", "waiting", *RIVALS)))
        self.serve("held", "held", "poor")
        self.held, self.num_keys = "held", count()

    def have_rivals_wait(self, rivals: list[str]) -> None:
        for rival in rivals:
            if self.state(rival) is State.UNLOADED:
                self.clock.now += 1
                self.want(rival, rival, f"rich{next(self.num_keys)}")

    def end_turn(self) -> None:
        actions = self.gone(self.held) + self.unloaded(self.held)
        self.held = next(each.model for each in actions if isinstance(each, Load))
        self.clock.now += 1
        self.loaded(self.held)


@settings(max_examples=30)
@given(st.lists(st.permutations(RIVALS), min_size=20, max_size=20))
def test_no_key_lets_a_model_wait_for_more_than_a_bounded_number_of_loads(orders: list[list[str]]):
    contest = Contest()
    contest.have_rivals_wait(orders[0])
    contest.want("waiting", "waiting", "poor")
    num_loads = 0
    while contest.held != "waiting":
        contest.end_turn()
        num_loads += 1
        contest.have_rivals_wait(orders[num_loads])
    assert MAX_PASSED < num_loads <= MAX_PASSED + len(RIVALS)


def test_a_model_that_no_client_wants_any_more_keeps_no_place():
    contest = Contest()
    contest.have_rivals_wait(RIVALS)
    contest.want("waiting", "waiting", "poor")
    for _ in range(MAX_PASSED):
        contest.end_turn()
        contest.have_rivals_wait(RIVALS)
    assert line(contest)[1] == "waiting"
    contest.unwant("waiting", "waiting")
    contest.want("waiting", "waiting", "poor")
    assert line(contest)[-1] == "waiting"


def test_a_key_with_many_recent_loads_waits_and_delays_no_other_key():
    machine = Machine(A, B, SMALL)
    for _ in range(MAX_RECENT_LOADS):
        machine.want("x", "a", "restless")
        machine.unwant("x", "a")
        machine.unloaded("a")
        machine.clock.now += 0.5
    assert machine.want("x", "a", "restless") == []
    assert machine.want("y", "b", "calm") == [Load("b")]
    machine.gone("y")
    machine.unloaded("b")
    assert machine.pass_to(machine.due_s) == [Load("a")]
    assert machine.clock.now == 1000.0 + RECENT_S


# --- keep_alive ---


def test_a_model_is_unloaded_when_keep_alive_has_passed_since_its_last_use():
    machine = Machine(served("a", keep_alive_s=30.0), SMALL)
    lease = machine.serve("x", "a")
    assert machine.pass_time(100) == []  # it has work
    machine.used("x", "a", is_busy=False)
    machine.clock.now += 20
    machine.tick()
    machine.status()
    machine.want("y", "small", "key")
    assert machine.due_s == machine.status()["a"].until_s == machine.clock.now + 10
    assert machine.pass_to(machine.due_s) == [Recall("x", "a", lease)]
    machine.clock.now += 1
    assert machine.release("x", "a", lease) == [Unload("a")]


def test_keep_alive_0_unloads_a_model_after_the_answer():
    machine = Machine(A)
    lease = machine.serve("x", "a")
    assert machine.used("x", "a", is_busy=False, keep_alive_s=0.0) == [Recall("x", "a", lease)]


def test_keep_alive_of_a_request_holds_until_the_next_use():
    machine = Machine(served("a", keep_alive_s=30.0))
    machine.serve("x", "a")
    for keep_alive_s, until_s in ((5.0, 5.0), (None, 30.0), (math.inf, math.inf)):
        machine.used("x", "a", is_busy=True)
        machine.used("x", "a", is_busy=False, keep_alive_s=keep_alive_s)
        assert machine.status()["a"].until_s == machine.clock.now + until_s


def test_keep_alive_of_a_request_ends_with_the_grant_to_another_client():
    machine = Machine(served("a", keep_alive_s=30.0))
    machine.serve("x", "a")
    machine.used("x", "a", is_busy=False, keep_alive_s=math.inf)
    machine.want("y", "a", "key")
    machine.gone("y")
    assert machine.due_s == machine.clock.now + 30.0


def test_keep_alive_of_a_request_ends_with_the_model():
    machine = Machine(served("a", keep_alive_s=30.0))
    machine.serve("x", "a")
    machine.used("x", "a", is_busy=False, keep_alive_s=math.inf)
    machine.lost("a")
    machine.load("a")
    machine.loaded("a")
    assert machine.due_s == machine.clock.now + 30.0


def test_a_busy_client_that_is_gone_has_used_the_model_until_then():
    machine = Machine(served("a", keep_alive_s=30.0))
    machine.serve("x", "a")
    machine.clock.now += 100
    machine.gone("x")
    assert machine.due_s == machine.clock.now + 30.0


def test_a_want_that_comes_before_an_expired_model_is_unloaded_keeps_it():
    machine = Machine(served("a", keep_alive_s=30.0))
    lease = machine.serve("x", "a")
    machine.used("x", "a", is_busy=False)
    machine.pass_to(machine.due_s)
    assert machine.want("x", "a", "key") == [Grant("x", "a", lease + 1)]


# --- failures ---


def test_a_failed_load_refuses_all_that_wait_and_the_pause_before_the_next_one_doubles():
    machine = Machine(A)
    pause_s = FIRST_PAUSE_S
    for _ in range(10):
        assert machine.want("x", "a", "key") == [Load("a")]
        machine.want("y", "a", "key")
        error = LoadFailed("no such file", pause_s)
        assert machine.load_failed("a", "no such file") == [Refuse("x", "a", error), Refuse("y", "a", error)]
        machine.clock.now += pause_s - 1
        assert machine.want("x", "a", "key") == [Refuse("x", "a", LoadFailed("no such file", 1.0))]
        machine.clock.now += 1
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)
    machine.serve("x", "a")
    machine.lost("a")
    machine.want("x", "a", "key")
    assert machine.load_failed("a", "no") == [Refuse("x", "a", LoadFailed("no", FIRST_PAUSE_S))]


def test_an_operator_does_not_wait_for_the_pause():
    machine = Machine(A)
    machine.want("x", "a", "key")
    machine.load_failed("a", "no")
    assert machine.load("a") == [Load("a")]


def test_the_leases_of_a_lost_model_end_and_the_next_want_loads_it():
    machine = Machine(A)
    lease = machine.serve("x", "a")
    assert machine.lost("a") == [Recall("x", "a", lease)]
    assert machine.want("x", "a", "key") == [Load("a")]


def test_a_model_that_was_loaded_without_the_arbiter_counts_and_can_be_evicted():
    machine = Machine(A, B)
    machine.loaded("a")
    assert machine.want("x", "b", "key") == [Unload("a")]


def test_a_client_that_is_gone_holds_and_wants_no_model():
    machine = Machine(A, B, SMALL)
    machine.serve("x", "a")
    machine.want("x", "small", "key")
    machine.want("y", "b", "key")
    assert machine.gone("x") == [Abort("small"), Unload("a")]


# --- models that are offered, and leases without a want ---


def test_a_loaded_model_is_lent_idle_and_once_and_no_other_is():
    machine = Machine(A, B)
    machine.loaded("a")
    assert machine.lend("x", "a") == [Grant("x", "a", 1, is_busy=False)]
    assert machine.lend("x", "a") == machine.lend("x", "b") == []


def test_a_lent_model_has_no_later_end():
    machine = Machine(served("a", keep_alive_s=30.0))
    machine.loaded("a")
    end_s = machine.due_s
    machine.clock.now += 20
    machine.lend("x", "a")
    assert machine.due_s == end_s
    assert machine.pass_to(end_s) == [Recall("x", "a", 1)]


def test_a_model_that_must_leave_is_not_lent():
    machine = Machine(A, B)
    lease = machine.serve("x", "a")
    machine.used("x", "a", is_busy=False)
    assert machine.want("y", "b", "key") == [Recall("x", "a", lease)]
    assert machine.lend("z", "a") == []


def test_a_new_offer_is_known_and_one_in_memory_keeps_its_size_until_it_leaves():
    machine = Machine(A)
    machine.serve("x", "a")
    machine.offer([served("a", 3), B])
    assert machine.knows("b")
    assert machine.status()["a"].size_bytes == 6
    machine.lost("a")
    machine.offer([served("a", 3), B])
    assert machine.status()["a"].size_bytes == 3


def test_a_model_that_is_offered_no_more_is_forgotten_when_it_is_not_in_memory():
    machine = Machine(A, B)
    machine.serve("x", "a")
    machine.want("y", "b", "key")
    [refused] = machine.offer([])
    assert isinstance(refused, Refuse)
    assert (refused.client, refused.model) == ("y", "b")
    assert (machine.knows("a"), machine.knows("b")) == (True, False)
    machine.lost("a")
    machine.offer([])
    assert not machine.knows("a")


# --- operator ---


def test_an_operators_load_waits_for_its_turn_and_gets_no_lease():
    machine = Machine(A, B)
    machine.serve("x", "a")
    machine.load("b")
    assert machine.gone(OPERATOR + "x") == [Unload("a")]
    assert machine.unloaded("a") == [Load("b")]
    assert machine.loaded("b") == []
    assert machine.want("x", "a", "key") == [Unload("b")]


def test_an_operator_may_load_without_a_bound():
    machine = Machine(A)
    for _ in range(MAX_RECENT_LOADS + 1):
        assert machine.load("a") == [Load("a")]
        machine.unload("a")
        machine.unloaded("a")


def test_an_operators_unload_takes_a_model_back_until_the_next_want():
    machine = Machine(served("a", is_pinned=True))
    lease = machine.serve("x", "a")
    assert machine.unload("a") == [Recall("x", "a", lease)]
    assert machine.want("y", "a", "key") == []
    assert machine.release("x", "a", lease) == [Unload("a")]
    machine.unwant("y", "a")
    assert machine.unloaded("a") == []
    assert machine.want("y", "a", "key") == [Load("a")]
    machine.end_load("a")
    assert machine.tick() == []


def test_an_operators_unload_ends_with_the_loss_of_the_model():
    machine = Machine(A)
    machine.serve("x", "a")
    machine.unload("a")
    machine.lost("a")
    machine.serve("x", "a")
    assert machine.tick() == []
    assert machine.want("y", "a", "key") == [Grant("y", "a", 3)]


def test_an_operators_unload_takes_the_operators_load_back():
    machine = Machine(A)
    machine.load("a")
    assert machine.unload("a") == [Abort("a")]
    assert machine.unloaded("a") == []


def test_an_operators_unload_of_a_loading_model_lets_those_that_wait_have_it_first():
    machine = Machine(A)
    machine.want("x", "a", "key")
    machine.unload("a")
    assert machine.loaded("a") == [Grant("x", "a", 1), Recall("x", "a", 1)]


def test_status_has_the_place_in_the_line():
    machine = Machine(A, B, served("c"))
    machine.want("x", "a", "key")
    machine.want("x", "b", "key")
    machine.clock.now += 1
    machine.want("x", "c", "key")
    machine.want("y", "c", "key")
    status = machine.status()
    assert [status[name].position for name in "abc"] == [0, 1, 2]
    assert [status[name].num_waiting for name in "abc"] == [1, 1, 2]
    assert [status[name].state for name in "abc"] == [State.LOADING, State.UNLOADED, State.UNLOADED]


# --- random lives ---

MODELS = [
    served("a", 4),
    served("b", 4, keep_alive_s=20.0, load_s=3.0),
    served("c", 3, keep_alive_s=0.0),
    served("d", 8),
    served("e", 1),
    served("pinned", 2, is_pinned=True),
    served("large", 9),
    served("card", 1, devices=on_card(5)),
    served("card alone", 0, devices=on_card(9)),
]
CLIENTS = ["w", "x", "y", "z"]
KEYS = ["one", "two", "three"]
SIZES = {each.name: each.size_bytes for each in MODELS}
ON_CARD = {each.name: each.memory.of("CUDA0") for each in MODELS}

RARELY = st.integers(0, 4).map(lambda number: number == 4)


def end_loads_and_unloads(machine: Any) -> None:
    """End all loads and unloads of a state machine, which succeed."""
    for name in machine.names_in(State.UNLOADING):
        del machine.memory[name]
        machine.perform(machine.arbiter.unloaded(name))
    for name in machine.names_in(State.LOADING):
        machine.memory[name] = State.LOADED
        machine.perform(machine.arbiter.loaded(name))


class Life(RuleBasedStateMachine):
    """Clients, a driver and an operator do what they may, in any order; each action of the arbiter is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.arbiter = Arbiter(MODELS, TOTAL_BYTES, self.clock)
        self.memory: dict[str, State] = {}  # of the models that hold some
        self.waiting: set[tuple[str, str]] = set()  # client and model
        self.leases: dict[tuple[str, str], int] = {}
        self.recalled: set[tuple[str, str]] = set()
        self.unloads_wanted: set[str] = set()
        self.has_failed = False

    def perform(self, actions: list[Action]) -> None:
        self.has_failed = True  # unless all actions are right
        for action in actions:
            held_for = (getattr(action, "client", ""), action.model)
            match action:
                case Load(name):
                    assert name not in self.memory, "two loads"
                    self.memory[name] = State.LOADING
                case Unload(name):
                    assert self.memory[name] is State.LOADED, "evicted while it loads"
                    assert not any(model == name for _, model in self.leases), "evicted while it serves"
                    assert name != "pinned" or name in self.unloads_wanted
                    self.memory[name] = State.UNLOADING
                case Abort(name):
                    assert self.memory[name] is State.LOADING
                    assert not any(model == name for _, model in self.waiting)
                    self.memory[name] = State.UNLOADING
                case Grant():
                    assert self.memory[action.model] is State.LOADED
                    self.waiting.remove(held_for)
                    self.leases[held_for] = action.lease
                    self.recalled.discard(held_for)
                case Recall():
                    assert self.leases[held_for] == action.lease
                    assert held_for not in self.recalled
                    self.recalled.add(held_for)
                case Refuse():
                    assert self.memory.get(action.model) is None
                    self.waiting.remove(held_for)
        for name in self.unloads_wanted & {name for name in SIZES if name not in self.memory}:
            self.unloads_wanted.remove(name)
        self.has_failed = False

    def release(self, held_for: tuple[str, str]) -> None:
        number = self.leases.pop(held_for)
        self.recalled.discard(held_for)
        self.perform(self.arbiter.release(*held_for, number))

    def names_in(self, *states: State) -> list[str]:
        return sorted(name for name, state in self.memory.items() if state in states)

    @rule(client=st.sampled_from(CLIENTS), name=st.sampled_from(sorted(SIZES)), key=st.sampled_from(KEYS))
    def want(self, client: str, name: str, key: str) -> None:
        if (client, name) not in self.leases or (client, name) in self.recalled:
            self.waiting.add((client, name))
            self.perform(self.arbiter.want(client, name, key))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def unwant(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(waiter)
        self.perform(self.arbiter.unwant(*waiter))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), is_busy=st.booleans(), keep_alive_s=st.sampled_from([None, 0.0, 5.0, math.inf]))
    def use(self, data: st.DataObject, is_busy: bool, keep_alive_s: float | None) -> None:
        holder = data.draw(st.sampled_from(sorted(self.leases)))
        self.perform(self.arbiter.used(*holder, is_busy=is_busy, keep_alive_s=keep_alive_s))

    @precondition(lambda self: self.recalled)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(sorted(self.recalled))))

    @rule(client=st.sampled_from(CLIENTS), is_rare=RARELY)
    def leave(self, client: str, is_rare: bool) -> None:
        if not is_rare:
            return
        for held in (self.waiting, self.recalled):
            held.difference_update([each for each in held if each[0] == client])
        self.leases = {each: number for each, number in self.leases.items() if each[0] != client}
        self.perform(self.arbiter.gone(client))

    @precondition(lambda self: self.names_in(State.LOADING))
    @rule(data=st.data(), is_failure=RARELY)
    def end_load(self, data: st.DataObject, is_failure: bool) -> None:
        name = data.draw(st.sampled_from(self.names_in(State.LOADING)))
        if is_failure:
            del self.memory[name]
            self.waiting |= {(OPERATOR, name)} if self.is_wanted_by_operator(name) else set()
            self.perform(self.arbiter.load_failed(name, "no"))
        else:
            self.memory[name] = State.LOADED
            self.perform(self.arbiter.loaded(name))

    def is_wanted_by_operator(self, name: str) -> bool:
        waiters = sum(model == name for client, model in self.waiting if client != OPERATOR)
        return self.arbiter.status()[name].num_waiting > waiters

    @precondition(lambda self: self.names_in(State.UNLOADING))
    @rule(data=st.data())
    def end_unload(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names_in(State.UNLOADING)))
        del self.memory[name]
        self.perform(self.arbiter.unloaded(name))

    @precondition(lambda self: self.names_in(State.LOADED))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names_in(State.LOADED)))
        del self.memory[name]
        self.perform(self.arbiter.lost(name))
        self.leases = {each: number for each, number in self.leases.items() if each[1] != name}
        self.recalled = {each for each in self.recalled if each[1] != name}

    @rule(name=st.sampled_from(sorted(set(SIZES) - {"large"})))
    def load(self, name: str) -> None:
        self.perform(self.arbiter.load(name))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def unload(self, name: str) -> None:
        self.unloads_wanted.add(name)
        self.perform(self.arbiter.unload(name))

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        end_s = self.clock.now + seconds
        while self.arbiter.due_s is not None and self.arbiter.due_s <= end_s:
            self.tick_when_due()
        self.clock.now = end_s

    def tick_when_due(self) -> None:
        assert self.arbiter.due_s is not None
        assert self.arbiter.due_s > self.clock.now
        self.clock.now = self.arbiter.due_s
        self.perform(self.arbiter.tick())

    @invariant()
    def the_memory_is_bounded_and_as_the_arbiter_says(self) -> None:
        assert sum(SIZES[name] for name in self.memory) <= TOTAL_BYTES
        assert sum(ON_CARD[name] for name in self.memory) <= 9
        states = {name: status.state for name, status in self.arbiter.status().items()}
        held = (State.LOADING, State.LOADED, State.UNLOADING)
        assert {name: state for name, state in states.items() if state in held} == self.memory

    @invariant()
    def an_event_leaves_nothing_to_do(self) -> None:
        actions = self.arbiter.tick()
        self.perform(actions)
        self.has_failed = bool(actions)
        assert actions == []
        assert self.arbiter.due_s is None or self.arbiter.due_s > self.clock.now

    def teardown(self) -> None:
        """Play on until all is quiet, with clients that use each lease until its recall: no client may still wait."""
        if self.has_failed:
            return
        for _ in range(200):
            for holder in sorted(self.recalled):
                self.release(holder)
            end_loads_and_unloads(self)
            if not self.recalled and not self.names_in(State.UNLOADING, State.LOADING):
                if all(status.num_waiting == 0 for status in self.arbiter.status().values()):
                    break
                self.tick_when_due()
        assert not self.waiting, "forgotten"


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_no_life_evicts_a_used_model_loads_one_twice_or_forgets_a_client = Life.TestCase


# --- planted faults ---


def begin_late(self: Arbiter, model: Model, state: State, key: str, now: float) -> None:
    """Note a load only when it ends."""
    model.turn = Turn(key, now)


want = Arbiter.want


def want_unless_unloading(self: Arbiter, client: str, name: str, key: str) -> list[Action]:
    return [] if self.status()[name].state is State.UNLOADING else want(self, client, name, key)


FAULTS = {
    "evicted while it serves": (Model, "is_held", False),
    "evicted while it loads": (
        Model,
        "is_evictable",
        property(lambda self: self.state in (State.LOADED, State.LOADING) and not self.offered.is_pinned),
    ),
    "two loads": (Arbiter, "_begin_turn", begin_late),
    "forgotten": (Arbiter, "want", want_unless_unloading),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_random_lives_find_a_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(*FAULTS[fault])
    few = settings(Life.TestCase.settings, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=fault):
        run_state_machine_as_test(Life, settings=few)
