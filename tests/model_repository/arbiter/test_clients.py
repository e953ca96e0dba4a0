"""Clients of an arbiter: each rule alone, then random messages that are lost, late or overtaken."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from model_repository.arbiter.arbiter import Arbiter
from model_repository.arbiter.clients import GONE_S, Clients
from model_repository.arbiter.types import Abort, Action, Grant, Load, OfferedModel, Recall, Refuse, Unload
from model_repository.contract.arbiter import (
    HELD_S,
    ArbiterAnswer,
    ArbiterRequest,
    GivenLease,
    HeldLease,
    LoadRefusal,
    State,
    Wish,
)
from tests.model_repository.arbiter.test_arbiter import SMALL, TOTAL_BYTES, A, B, Clock, end_loads_and_unloads, served

WISH = Wish("key")


class Exchange:
    """Clients of an arbiter. The test says when each load and unload ends."""

    def __init__(self, *models: OfferedModel) -> None:
        self.clock = Clock()
        self.arbiter = Arbiter(models, TOTAL_BYTES, self.clock)
        self.clients = Clients(self.arbiter, self.clock)
        self.clock.now += GONE_S
        self.clients.end_gone()  # that stands for earlier clients
        self.serials: Counter[str] = Counter()
        self.answers: dict[str, list[ArbiterAnswer]] = {}
        self.orders: list[Action] = []  # for the driver

    def ask(
        self,
        client: str,
        leases: Mapping[str, HeldLease] = {},
        wishes: Mapping[str, Wish] = {},
        serial: int = 0,
        loaded: list[str] | None = None,
    ) -> None:
        self.serials[client] += 1
        request = ArbiterRequest(client=client, serial=serial or self.serials[client], leases=leases, wishes=wishes)
        if loaded is None:
            loaded = [name for name, each in self.arbiter.status().items() if each.state is State.LOADED]
        self.perform(self.clients.ask(request, self.answers.setdefault(client, []).append, loaded))

    def perform(self, actions: list[Action], *, is_news: bool = False) -> None:
        for action in actions:
            if isinstance(action, Grant | Recall | Refuse):
                self.clients.tell(action)
            else:
                self.orders.append(action)
        self.clients.answer(lambda answer, catalog: answer, is_news=is_news)

    def end_load(self, name: str) -> None:
        self.perform(self.arbiter.loaded(name))

    def serve(self, client: str, name: str) -> HeldLease:
        """Have a model loaded for a client, which has heard of its lease."""
        self.ask(client)
        self.ask(client, wishes={name: WISH})
        self.end_load(name)
        return HeldLease(self.answers[client][-1].leases[name].number, is_busy=True)


def test_a_client_without_news_is_answered_after_its_time() -> None:
    exchange = Exchange(A)
    exchange.ask("x")
    exchange.ask("x")
    assert len(exchange.answers["x"]) == 1  # the first one, which every client gets at once
    assert exchange.clients.due_s == exchange.clock.now + HELD_S
    exchange.clock.now += HELD_S
    exchange.perform([])
    assert len(exchange.answers["x"]) == 2


def test_a_recall_while_the_next_request_is_on_its_way_answers_it_at_once() -> None:
    """The news was forgotten, so each recall of such a client waited for a second."""
    exchange = Exchange(A, B)
    lease = exchange.serve("x", "a")
    exchange.perform(exchange.arbiter.used("x", "a", is_busy=False))
    exchange.ask("y", wishes={"b": WISH})  # now, between two requests of x
    exchange.ask("x", {"a": lease})
    assert exchange.answers["x"][-1].leases == {"a": GivenLease(lease.number, is_recalled=True)}


def test_news_for_all_reach_a_client_with_its_next_request() -> None:
    exchange = Exchange(A)
    exchange.ask("x")
    exchange.perform([], is_news=True)
    exchange.ask("x")
    assert len(exchange.answers["x"]) == 2


def test_an_overtaken_request_is_answered_and_changes_nothing() -> None:
    exchange = Exchange(A)
    exchange.ask("x", wishes={"a": WISH}, serial=2)
    exchange.ask("x", serial=1)
    assert exchange.orders == [Load("a")]
    assert exchange.answers["x"][-1] == ArbiterAnswer()


def test_a_lease_that_its_client_has_not_heard_of_stays() -> None:
    """A request that passed the grant on its way ended the lease, and another model could evict the unused one."""
    exchange = Exchange(A, B)
    lease = exchange.serve("x", "a")
    exchange.ask("y", wishes={"b": WISH})
    exchange.ask("x", wishes={"a": WISH})
    assert exchange.orders == [Load("a")]
    assert exchange.answers["x"][-1].leases == {"a": GivenLease(lease.number)}


def test_a_client_that_knows_an_earlier_lease_only_gets_the_later_one() -> None:
    exchange = Exchange(A, B)
    early = exchange.serve("x", "a")
    exchange.ask("y", wishes={"b": WISH}, loaded=[])
    exchange.clock.now = exchange.arbiter.due_s or math.inf
    exchange.perform(exchange.arbiter.tick())  # recalls the lease
    exchange.ask("x", {"a": early}, {"a": WISH})
    exchange.ask("y", loaded=[])  # wants no more, so x is granted again
    exchange.ask("x", {"a": early}, {"a": WISH})
    assert exchange.answers["x"][-1].leases == {"a": GivenLease(early.number + 1)}
    assert exchange.orders == [Load("a")]


def test_a_recalled_lease_that_its_client_does_not_list_has_ended() -> None:
    exchange = Exchange(A, B)
    lease = exchange.serve("x", "a")
    exchange.ask("x", {"a": HeldLease(lease.number)})
    exchange.ask("y", wishes={"b": WISH})
    exchange.ask("x", wishes={"a": WISH})
    assert exchange.orders == [Load("a"), Unload("a")]


def test_a_wish_that_is_not_repeated_has_ended() -> None:
    exchange = Exchange(A)
    exchange.ask("x", wishes={"a": WISH})
    exchange.ask("x")
    assert exchange.orders == [Load("a"), Abort("a")]


def test_a_refusal_that_its_client_has_not_heard_of_ends_its_wish() -> None:
    """The wish was taken for a new one, and its requests got the old refusal while the model loaded for none."""
    exchange = Exchange(A)
    exchange.ask("x", wishes={"a": WISH})  # is answered at once, as the first one
    exchange.perform(exchange.arbiter.load_failed("a", "no"))
    exchange.clock.now += 60
    exchange.ask("x", wishes={"a": WISH})
    assert exchange.answers["x"][-1].refusals == {"a": LoadRefusal("load_failed", cause="no", retry_after_s=5.0)}
    assert exchange.orders == [Load("a")]


def test_a_wish_of_an_unknown_model_is_refused_at_once() -> None:
    exchange = Exchange(A)
    exchange.ask("x")
    exchange.ask("x", wishes={"other": WISH})
    assert exchange.answers["x"][-1].refusals == {
        "other": LoadRefusal("load_failed", cause="it is not in the repository")
    }


def test_a_refusal_is_told_once() -> None:
    exchange = Exchange(A, served("large", TOTAL_BYTES + 1))
    exchange.ask("x", wishes={"large": WISH})
    exchange.perform([], is_news=True)
    exchange.ask("x")
    refusal = LoadRefusal("model_too_large", needed_bytes=TOTAL_BYTES + 1, total_bytes=TOTAL_BYTES)
    assert [answer.refusals for answer in exchange.answers["x"]] == [{"large": refusal}, {}]


def test_a_client_gets_the_leases_of_loaded_models_without_a_wish() -> None:
    exchange = Exchange(A, B)
    exchange.perform(exchange.arbiter.loaded("a"))
    exchange.ask("x")
    assert exchange.answers["x"][-1].leases == {"a": GivenLease(1)}


@pytest.mark.parametrize("use", [HeldLease(1, num_begun=1), HeldLease(1, is_busy=True)])
def test_a_use_is_one_also_if_it_ended_between_two_requests(use: HeldLease) -> None:
    """Only requests that ran at that moment counted: a model with short ones was unloaded in use."""
    exchange = Exchange(A)
    exchange.perform(exchange.arbiter.loaded("a"))
    exchange.ask("x")
    exchange.clock.now += 1
    for expected in (exchange.clock.now, exchange.clock.now):
        exchange.ask("x", {"a": use})
        assert exchange.arbiter.status()["a"].used_s == expected
        exchange.clock.now += 1  # the same report again is no use


def test_a_silent_client_holds_nothing_after_its_time_and_one_that_waits_for_an_answer_does() -> None:
    exchange = Exchange(A, SMALL)
    exchange.serve("x", "a")
    exchange.ask("y")
    exchange.ask("y")  # is not answered yet
    exchange.clock.now += GONE_S
    exchange.perform(exchange.clients.end_gone())
    assert not exchange.arbiter.status()["a"].is_busy
    exchange.clock.now += GONE_S
    assert exchange.clients.end_gone() == []


def test_a_forgotten_client_that_comes_back_gets_a_lease_anew_or_hears_that_it_has_none() -> None:
    exchange = Exchange(A, SMALL)
    lease = exchange.serve("x", "a")
    exchange.clock.now += GONE_S
    exchange.perform(exchange.clients.end_gone())
    exchange.ask("x", {"a": lease, "small": HeldLease(7)})
    assert exchange.answers["x"][-1].leases == {"a": GivenLease(lease.number + 1)}


def test_the_leases_of_a_lost_model_end() -> None:
    exchange = Exchange(A)
    lease = exchange.serve("x", "a")
    exchange.clients.forget("a")
    exchange.perform(exchange.arbiter.lost("a"))
    exchange.ask("x", {"a": lease})
    assert exchange.answers["x"][-1].leases == {}


def test_a_model_is_in_repair_while_a_live_client_says_so() -> None:
    exchange = Exchange(A)
    lease = exchange.serve("x", "a")
    exchange.ask("x", {"a": HeldLease(lease.number, is_repairing=True)})
    assert exchange.clients.is_repairing("a")
    exchange.ask("x", {"a": lease})
    assert not exchange.clients.is_repairing("a")


# --- random messages ---

MODELS = [A, served("b", keep_alive_s=5.0), served("large", TOTAL_BYTES + 1)]
NAMES = st.sampled_from("xy")
SIZES = {each.name: each.size_bytes for each in MODELS}


class Frontend:
    """A client as a frontend is: it reads only the answer to its latest request."""

    def __init__(self, name: str) -> None:
        self.name, self.serial = name, 0
        self.leases: dict[str, GivenLease] = {}
        self.wishes: set[str] = set()
        self.running: Counter[str] = Counter()
        self.is_forgotten = False  # since its last answer was sent
        self.num_forgotten = 0
        self.has_answer = True

    def request(self) -> ArbiterRequest:
        self.serial, self.has_answer = self.serial + 1, False
        for model in [each for each, lease in self.leases.items() if lease.is_recalled and not self.running[each]]:
            del self.leases[model]
        leases = {model: HeldLease(each.number, self.running[model] > 0) for model, each in self.leases.items()}
        return ArbiterRequest(
            client=self.name, serial=self.serial, leases=leases, wishes=dict.fromkeys(self.wishes, WISH)
        )

    def want(self, model: str) -> None:
        if model in self.leases and not self.leases[model].is_recalled:
            self.running[model] += 1
        else:
            self.wishes.add(model)

    def forget(self) -> None:
        self.is_forgotten, self.num_forgotten = True, self.num_forgotten + 1

    def read(self, serial: int, answer: ArbiterAnswer, num_forgotten: int) -> None:
        if serial != self.serial or self.has_answer:
            return
        self.has_answer, self.leases = True, dict(answer.leases)
        self.is_forgotten = num_forgotten < self.num_forgotten
        self.wishes -= answer.refusals.keys()
        for model in [each for each in self.wishes if each in self.leases and not self.leases[each].is_recalled]:
            self.wishes.remove(model)
            self.running[model] += 1


class Traffic(RuleBasedStateMachine):
    """Frontends, a driver, and a network that delays, loses and reorders messages."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.arbiter = Arbiter(MODELS, TOTAL_BYTES, self.clock)
        self.clients = Clients(self.arbiter, self.clock)
        self.frontends = {name: Frontend(name) for name in "xy"}
        self.requests: list[ArbiterRequest] = []
        self.answers: list[tuple[Frontend, int, ArbiterAnswer, int]] = []
        self.memory: dict[str, State] = {}
        self.has_failed = False

    def perform(self, actions: list[Action]) -> None:
        self.has_failed = True  # unless all actions are right
        for action in actions:
            match action:
                case Load(name):
                    assert name not in self.memory, "two loads"
                    self.memory[name] = State.LOADING
                case Unload(name):
                    users = [each for each in self.frontends.values() if name in each.leases and not each.is_forgotten]
                    used = [each for each in users if not each.leases[name].is_recalled or each.running[name]]
                    assert not used, "evicted while it serves"
                    self.memory[name] = State.UNLOADING
                case Abort(name):
                    self.memory[name] = State.UNLOADING
                case Grant() | Recall() | Refuse():
                    self.clients.tell(action)
        self.clients.answer(lambda answer, catalog: answer, is_news=False)
        self.has_failed = False

    @rule(name=NAMES, model=st.sampled_from(sorted(SIZES)))
    def want(self, name: str, model: str) -> None:
        self.frontends[name].want(model)

    @rule(name=NAMES, model=st.sampled_from(sorted(SIZES)))
    def leave(self, name: str, model: str) -> None:
        frontend = self.frontends[name]
        frontend.wishes.discard(model)
        if frontend.running[model]:
            frontend.running[model] -= 1

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        self.requests.append(self.frontends[name].request())

    @rule(name=NAMES)
    def exchange(self, name: str) -> None:
        frontend = self.frontends[name]
        self.deliver(frontend.request())
        for each, serial, answer, num_forgotten in self.answers:
            if each is frontend:
                frontend.read(serial, answer, num_forgotten)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def deliver_request(self, data: st.DataObject) -> None:
        self.deliver(self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1))))

    def deliver(self, request: ArbiterRequest) -> None:
        frontend = self.frontends[request.client]
        loaded = self.names_in(State.LOADED)

        def respond(answer: ArbiterAnswer) -> None:
            self.answers.append((frontend, request.serial, answer, frontend.num_forgotten))

        self.perform(self.clients.ask(request, respond, loaded))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), is_lost=st.booleans())
    def deliver_answer(self, data: st.DataObject, is_lost: bool) -> None:
        index = data.draw(st.integers(0, len(self.answers) - 1))
        frontend, serial, answer, num_forgotten = self.answers.pop(index)
        if not is_lost:
            frontend.read(serial, answer, num_forgotten)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def lose_request(self, data: st.DataObject) -> None:
        self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))

    def names_in(self, *states: State) -> list[str]:
        return sorted(name for name, state in self.memory.items() if state in states)

    @precondition(lambda self: self.names_in(State.LOADING, State.UNLOADING))
    @rule(data=st.data(), is_failure=st.booleans())
    def end_work(self, data: st.DataObject, is_failure: bool) -> None:
        name = data.draw(st.sampled_from(self.names_in(State.LOADING, State.UNLOADING)))
        if self.memory[name] is State.UNLOADING:
            del self.memory[name]
            self.perform(self.arbiter.unloaded(name))
        elif is_failure:
            del self.memory[name]
            self.perform(self.arbiter.load_failed(name, "no"))
        else:
            self.memory[name] = State.LOADED
            self.perform(self.arbiter.loaded(name))

    @precondition(lambda self: self.names_in(State.LOADED))
    @rule(data=st.data(), is_rare=st.integers(0, 4))
    def lose_model(self, data: st.DataObject, is_rare: int) -> None:
        name = data.draw(st.sampled_from(self.names_in(State.LOADED)))
        if is_rare:
            return
        del self.memory[name]
        for frontend in self.frontends.values():  # their requests fail
            frontend.leases.pop(name, None)
            frontend.forget()  # an answer that is on its way may have the lease
        self.clients.forget(name)
        self.perform(self.arbiter.lost(name))

    @rule(seconds=st.sampled_from([0.1, HELD_S, GONE_S / 2, GONE_S]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        known = {name for name in self.frontends if name in self.clients._clients}
        actions = self.clients.end_gone()
        for name in known - self.clients._clients.keys():
            self.frontends[name].forget()
        self.perform(actions)
        self.perform(self.arbiter.tick())

    @invariant()
    def a_lease_is_known_unless_its_client_was_forgotten(self) -> None:
        for name, frontend in self.frontends.items():
            held = {model for model in frontend.leases if name in self.arbiter._models[model].leases}
            assert frontend.is_forgotten or frontend.leases.keys() == held, "unknown lease"

    def teardown(self) -> None:
        """Let all messages flow, and each request that runs end: no wish may be left."""
        if self.has_failed:
            return
        for _ in range(60):
            self.clock.now += HELD_S
            for frontend in self.frontends.values():
                frontend.running.clear()
                self.deliver(frontend.request())
            self.perform(self.arbiter.tick())
            end_loads_and_unloads(self)
            self.clock.now += HELD_S
            self.perform([])
            for frontend, serial, answer, num_forgotten in self.answers:
                frontend.read(serial, answer, num_forgotten)
            self.answers.clear()
        assert not any(frontend.wishes for frontend in self.frontends.values()), "forgotten"


Traffic.TestCase.settings = settings(max_examples=250, stateful_step_count=50)
test_no_order_of_messages_evicts_a_used_model_or_forgets_a_wish = Traffic.TestCase
