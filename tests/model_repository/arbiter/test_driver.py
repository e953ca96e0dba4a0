"""The driver of an arbiter, on a Triton that loads and fails as the test says."""

from __future__ import annotations

import itertools
import math
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from model_repository.arbiter.catalog import Entry
from model_repository.arbiter.clients import GONE_S
from model_repository.arbiter.driver import MAX_MISSES, Driver, LoadError
from model_repository.contract.arbiter import ArbiterAnswer, ArbiterRequest, HeldLease, LoadRefusal, Wish
from model_repository.contract.engine_file import is_stopped
from model_repository.system.devices import DeviceUse
from tests.model_repository.arbiter.repository import parameters_of, write_model
from tests.model_repository.arbiter.test_arbiter import Clock

TIMEOUT_S = 20.0
TOTAL_BYTES = 10


class Gate(threading.Event):
    """Holds a call until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def hold(self) -> None:
        self.reached.set()
        assert self.wait(TIMEOUT_S)


class Triton:
    def __init__(self) -> None:
        self.loaded: set[str] = set()  # model ids
        self.errors: dict[str, Exception] = {}  # by call
        self.gates: dict[str, Gate] = {}  # by call
        self.calls: list[str] = []
        self.entries: list[Entry] = []  # of these calls
        self.ends_s: list[float] = []  # of unloads

    def _call(self, call: str) -> None:
        if gate := self.gates.get(call):
            gate.hold()
        if error := self.errors.get(call):
            raise error

    def is_loaded(self, entry: Entry) -> bool:
        self._call("is_loaded")
        return entry.model_id in self.loaded

    def load(self, entry: Entry) -> None:
        self.calls.append(f"load {entry.model_id}")
        self.entries.append(entry)
        self._call("load")
        self.loaded.add(entry.model_id)

    def unload(self, entry: Entry, end_requests_at_s: float) -> None:
        self.calls.append(f"unload {entry.model_id}")
        self.entries.append(entry)
        self.ends_s.append(end_requests_at_s)
        self._call("unload")
        self.loaded.discard(entry.model_id)


class Stage:
    """A driver, and short forms of its questions."""

    def __init__(self, repository: Path) -> None:
        self.repository, self.triton, self.clock = repository, Triton(), Clock()
        self.driver = Driver(repository, self.triton, TOTAL_BYTES, self.clock)
        self._serials = itertools.count(1)

    def send(self, request: ArbiterRequest) -> queue.SimpleQueue[ArbiterAnswer]:
        answers = queue.SimpleQueue[ArbiterAnswer]()
        self.driver.ask(request, answers.put)
        return answers

    def order(self, **order: Any) -> ArbiterAnswer:
        return self.send(ArbiterRequest(**order)).get(timeout=TIMEOUT_S)

    def tell(
        self, wishes: str = "", leases: Mapping[str, HeldLease] = {}, client: str = "x"
    ) -> queue.SimpleQueue[ArbiterAnswer]:
        """Send the state of a client with wishes, a letter each."""
        wanted = dict.fromkeys(wishes, Wish("key"))
        return self.send(ArbiterRequest(client=client, serial=next(self._serials), leases=leases, wishes=wanted))

    def look(self) -> ArbiterAnswer:
        """Let the time pass until the driver looks at Triton again."""
        self.clock.now += 1.0
        return self.order()

    def until(self, is_so: Callable[[ArbiterAnswer], bool]) -> ArbiterAnswer:
        """Ask until a thread has done its work."""
        timer = threading.Event()
        end = threading.Timer(TIMEOUT_S, timer.set)
        end.start()
        try:
            while not is_so(answer := self.order()):
                assert not timer.is_set(), answer
            return answer
        finally:
            end.cancel()

    def until_state(self, name: str, state: str) -> ArbiterAnswer:
        return self.until(lambda answer: answer.statuses[name].state == state)

    def unload(self, name: str) -> None:
        """Have an operator and the client give up a model."""
        self.order(unload=name)
        self.tell()
        self.until_state(name, "unloaded")

    def held(self, call: str) -> Gate:
        """Have the client want the model `a`, whose load or unload then waits for the gate."""
        gate = self.triton.gates[call] = Gate()
        self.tell("a")
        assert gate.reached.wait(TIMEOUT_S)
        return gate

    def serve(self, name: str) -> HeldLease:
        """Have a model loaded for the client, which has heard of its lease."""
        self.tell(name)
        self.until_state(name, "loaded")
        return HeldLease(self.tell(name).get(timeout=TIMEOUT_S).leases[name].number, is_busy=True)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_model(tmp_path / "models", parameters_of(name))
    made = Stage(tmp_path / "models")
    made.order()  # it has seen the repository
    yield made
    for gate in made.triton.gates.values():
        gate.set()
    made.driver.close()


def test_a_failed_load_holds_its_memory_until_its_rest_is_removed(stage: Stage) -> None:
    stage.triton.errors["load"] = LoadError("no such file")
    gate = stage.held("unload")
    assert stage.order().statuses["a"].state == "loading"
    gate.set()
    stage.until_state("a", "failed")
    refusal = LoadRefusal("load_failed", cause="no such file", retry_after_s=5.0)
    assert stage.tell("a").get(timeout=TIMEOUT_S).refusals == {"a": refusal}


def test_a_load_that_no_client_wants_while_its_rest_is_removed_leaves_a_model_that_can_load(stage: Stage) -> None:
    """The end of the removal counted as that of the load, which was aborted: the model was unloading for ever."""
    stage.triton.errors["load"] = LoadError("no")
    gate = stage.held("unload")
    stage.tell()
    stage.until_state("a", "unloading")
    gate.set()
    stage.until_state("a", "unloaded")
    del stage.triton.errors["load"]
    stage.serve("a")


def test_a_load_that_ends_as_it_is_aborted_is_undone(stage: Stage) -> None:
    gate = stage.held("load")
    stage.tell()
    stage.until_state("a", "unloading")
    gate.set()
    stage.until_state("a", "unloaded")
    assert stage.triton.calls == ["load a", "unload a"]
    stage.serve("a")


def test_an_aborted_load_is_told_to_stop(stage: Stage) -> None:
    stage.held("load")
    stage.tell()
    stage.until_state("a", "unloading")
    assert is_stopped("a")


def test_an_engine_that_begins_after_its_load_was_aborted_is_told_too(stage: Stage) -> None:
    stage.held("load")
    stage.tell()
    stage.until_state("a", "unloading")
    Path("a.stop").unlink()  # as an engine does that begins
    stage.look()
    assert is_stopped("a")


def test_a_load_has_the_mean_share_of_its_replicas(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(stage.repository, parameters_of("a", replica=2, memory_bytes=1))
    stage.look()
    stage.held("load")
    assert stage.order().statuses["a"].share is None
    monkeypatch.setattr("model_repository.arbiter.driver.share_of_load", {"a@2": 1.0}.get)
    assert stage.order().statuses["a"].share == 0.5


def test_an_unexpected_exception_of_a_load_has_no_text_for_clients(stage: Stage) -> None:
    stage.triton.errors["load"] = OSError("/home/x")
    stage.tell("a")
    assert stage.until_state("a", "failed").statuses["a"].cause == "internal error, see the server's log"


def test_a_model_whose_unload_raises_can_be_loaded_again(stage: Stage) -> None:
    stage.serve("a")
    stage.triton.errors["unload"] = OSError("no")
    stage.triton.loaded.clear()
    stage.unload("a")
    stage.serve("a")


def test_an_exception_while_the_driver_looks_loses_no_event(stage: Stage) -> None:
    """The request that came in that moment was dropped, or the end of a load: it was loading for ever."""
    stage.triton.errors["is_loaded"] = OSError("no")
    stage.clock.now += 1.0
    stage.serve("a")


def test_a_reply_that_raises_keeps_no_other_client_from_its_answer(stage: Stage) -> None:
    """It ended the thread."""

    def reply(_: ArbiterAnswer) -> None:
        raise OSError("the client is gone")

    stage.driver.ask(ArbiterRequest(client="y", serial=1), reply)
    stage.driver.ask(ArbiterRequest(), reply)
    assert stage.tell().get(timeout=TIMEOUT_S).total_bytes == TOTAL_BYTES


def test_a_request_that_is_held_at_the_end_is_answered(stage: Stage) -> None:
    """Triton keeps a stage that owes a response, and did not end."""
    held = stage.tell()
    stage.driver.close()
    assert held.get(timeout=TIMEOUT_S).total_bytes == TOTAL_BYTES


@pytest.mark.parametrize("order", ["load", "unload"])
def test_an_order_for_an_unknown_model_is_answered_with_the_known_ones(stage: Stage, order: str) -> None:
    assert stage.order(**{order: "other"}).statuses.keys() == {"a", "b"}


def test_an_order_that_is_refused_says_so(stage: Stage) -> None:
    write_model(stage.repository, parameters_of("large", memory_bytes=TOTAL_BYTES + 1))
    stage.look()
    assert stage.order(load="large").refusals["large"].code == "model_too_large"


def test_an_operators_unload_ends_requests_at_its_time_and_a_later_unload_does_not(stage: Stage) -> None:
    """An order for a model that was not loaded ended the requests of its next unload at once."""
    for timeout_s in (7.0, 8.0):
        stage.order(load="a")
        stage.until_state("a", "loaded")
        stage.order(unload="a", timeout_s=timeout_s)
        stage.until_state("a", "unloaded")
    stage.order(unload="a")
    stage.order(load="a")
    stage.until_state("a", "loaded")
    stage.tell("b")
    stage.until_state("b", "loaded")
    assert stage.triton.ends_s == [stage.clock.now + 7.0, stage.clock.now + 8.0, math.inf]


# --- the repository ---


def test_a_client_gets_the_catalog_that_it_does_not_have(stage: Stage) -> None:
    answer = stage.tell().get(timeout=TIMEOUT_S)
    assert answer.models is not None
    assert answer.models.keys() == {"a", "b"}
    assert (
        stage.send(ArbiterRequest(client="x", serial=9, catalog=answer.catalog)).get(timeout=TIMEOUT_S).models is None
    )


def test_a_new_model_of_the_repository_is_known(stage: Stage) -> None:
    write_model(stage.repository, parameters_of("c"))
    assert stage.look().statuses.keys() == {"a", "b", "c"}


def test_a_model_that_is_rendered_in_its_place_has_its_new_size(stage: Stage) -> None:
    """The arbiter looked only at the time of the repository's folder, which such a change does not touch."""
    devices = {"CUDA0": DeviceUse(description="NVIDIA", used_bytes=4, total_bytes=10)}
    write_model(stage.repository, parameters_of("a", memory_bytes=3, gpu_layers=1, devices=devices))
    status = stage.look().statuses["a"]
    assert (status.memory_bytes, status.device_bytes) == (3, {"CUDA0": 4})


def test_a_model_that_left_the_repository_is_not_known_any_more_and_its_wishes_are_refused(stage: Stage) -> None:
    """The load of such a model raised an error, and it was loading for ever."""
    stage.serve("a")
    lease = HeldLease(1, is_busy=True)
    stage.tell("b", {"a": lease})
    shutil.rmtree(stage.repository / "b")
    assert stage.look().statuses.keys() == {"a"}
    answer = stage.tell("b", {"a": lease}).get(timeout=TIMEOUT_S)
    assert answer.refusals["b"].cause == "it is not in the repository"


def test_a_loaded_model_that_left_the_repository_or_changed_there_is_unloaded_as_it_was_loaded(stage: Stage) -> None:
    write_model(stage.repository, parameters_of("b", replica=2, memory_bytes=1))
    stage.look()
    for name in "ab":
        stage.serve(name)
        shutil.rmtree(stage.repository / name)
        assert stage.look().statuses[name].state == "loaded"
        stage.unload(name)
    loaded_a, unloaded_a, loaded_b, unloaded_b = stage.triton.entries
    assert (unloaded_a, unloaded_b) == (loaded_a, loaded_b)
    assert stage.look().statuses.keys() == {"b"}  # the other replica


def test_a_repository_that_is_being_replaced_keeps_its_models(stage: Stage) -> None:
    stage.repository.rename(stage.repository.with_name("aside"))
    assert stage.look().statuses.keys() == {"a", "b"}


# --- models that others load, unload or repair ---


def test_a_model_that_others_have_loaded_is_leased_and_takes_memory(stage: Stage) -> None:
    stage.clock.now += GONE_S
    stage.triton.loaded.add("a")
    stage.look()
    stage.tell("b")
    stage.until_state("b", "loaded")
    assert stage.triton.calls == ["unload a", "load b"]


def test_a_restarted_arbiter_unloads_no_model_before_its_clients_can_have_asked(stage: Stage) -> None:
    stage.triton.loaded.add("a")
    stage.look()
    stage.tell("b")
    assert stage.order().statuses["a"].state == "loaded"
    stage.clock.now += GONE_S
    stage.order()
    stage.order()  # now the time has passed for the driver
    stage.tell("b")
    stage.until_state("b", "loaded")


def test_a_model_that_stays_away_is_lost(stage: Stage) -> None:
    lease = stage.serve("a")
    stage.triton.loaded.clear()
    states, answer = [], queue.SimpleQueue[ArbiterAnswer]()
    for _ in range(MAX_MISSES):
        answer = stage.tell(leases={"a": lease})
        states.append(stage.look().statuses["a"].state)
    assert states == [*["loaded"] * (MAX_MISSES - 1), "unloaded"]
    assert answer.get(timeout=TIMEOUT_S).leases == {}


def test_a_model_that_a_client_repairs_is_not_lost(stage: Stage) -> None:
    lease = stage.serve("a")
    stage.triton.loaded.clear()
    for _ in range(MAX_MISSES + 1):
        stage.tell(leases={"a": HeldLease(lease.number, is_busy=True, is_repairing=True)})
        assert stage.look().statuses["a"].state == "loaded"


def test_a_client_whose_request_waits_is_not_gone(stage: Stage) -> None:
    """A driver that was held up for three seconds forgot all clients, and their leases."""
    lease = stage.serve("a")
    gate = stage.triton.gates["is_loaded"] = Gate()
    stage.clock.now += 1.0
    stage.send(ArbiterRequest())
    assert gate.reached.wait(TIMEOUT_S)
    stage.clock.now += GONE_S
    stage.tell(leases={"a": lease})
    gate.set()
    stage.order()
    assert stage.tell("b", {"a": lease}).get(timeout=TIMEOUT_S).leases["a"].number == lease.number
