"""The order of waiting requests and the fairness between keys, over generated cases."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from frontend.gateway.admission import WEIGHTS, Entry, FairQueue
from frontend.protocol.priority import Priority

COSTS = st.integers(1, 100)


def push(queue: FairQueue[str], key: str, cost: float = 1, priority: Priority = Priority.NORMAL) -> Entry[str]:
    entry = queue.entry(key, (key, priority), cost)
    queue.push(entry)
    return entry


def pop[Item](queue: FairQueue[Item]) -> Item:
    entry = queue.first(lambda sender: True)
    assert entry is not None
    queue.serve(entry)
    return entry.item


@given(
    mine=st.lists(COSTS, min_size=30, max_size=30),
    others=st.lists(COSTS, min_size=30, max_size=30),
    num_served=st.integers(1, 30),
)
def test_two_waiting_keys_get_equal_service_up_to_one_request_each(
    mine: list[int], others: list[int], num_served: int
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for key, costs in (("a", mine), ("b", others)):
        for cost in costs:
            queue.push(queue.entry((key, cost), (key, Priority.NORMAL), cost))
    served: Counter[str] = Counter()
    for _ in range(num_served):
        key, cost = pop(queue)
        served[key] += cost
    assert abs(served["a"] - served["b"]) <= max(mine) + max(others)


@given(st.lists(st.tuples(st.sampled_from("abcd"), COSTS, st.sampled_from(Priority)), max_size=200))
def test_later_requests_cannot_starve_an_earlier_one(newcomers: list[tuple[str, int, Priority]]) -> None:
    queue: FairQueue[str] = FairQueue()
    push(queue, "flood", 100, Priority.HIGH)
    pop(queue)
    push(queue, "me", 100, Priority.LOW)
    budget = 100 / WEIGHTS[Priority.LOW]  # of virtual time; later requests come behind
    served: Counter[tuple[str, Priority]] = Counter()
    for key, cost, priority in newcomers:
        entry = queue.entry(f"{key}", (key, priority), cost)
        queue.push(entry)
        if pop(queue) == "me":
            return
        served[key, priority] += cost
    for flow, cost in served.items():
        assert cost <= (budget + 100) * WEIGHTS[flow[1]]


@given(st.lists(COSTS, min_size=60, max_size=60))
def test_a_higher_priority_gets_its_weight_and_no_more(costs: list[int]) -> None:
    queue: FairQueue[tuple[Priority, int]] = FairQueue()
    for priority in Priority:
        for cost in costs:
            queue.push(queue.entry((priority, cost), (priority, priority), cost))
    served: Counter[Priority] = Counter()
    for _ in range(60):
        priority, cost = pop(queue)
        served[priority] += cost
    high, normal = served[Priority.HIGH] / WEIGHTS[Priority.HIGH], served[Priority.NORMAL] / WEIGHTS[Priority.NORMAL]
    assert abs(high - normal) <= 100 / WEIGHTS[Priority.HIGH] + 100 / WEIGHTS[Priority.NORMAL]


def test_the_first_entry_that_may_pass_is_found_without_a_look_at_each_entry_of_a_flood() -> None:
    """Each of a thousand completions that left was a walk over the thousand, which took the event loop a second."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(1000):
        push(queue, "flood")
    asked: list[str] = []

    def may_pass(sender: str) -> bool:
        asked.append(sender)
        return sender != "flood"

    assert queue.first(may_pass) is None
    assert asked == ["flood"]
    other = push(queue, "other")
    assert queue.first(may_pass) is other
    queue.remove(other)
    assert queue.first(may_pass) is None


def test_a_request_that_leaves_is_not_charged() -> None:
    queue: FairQueue[str] = FairQueue()
    push(queue, "other", 10)
    queue.remove(push(queue, "me", 1000))
    push(queue, "me", 1)
    assert pop(queue) == "me"


@given(st.lists(st.tuples(st.sampled_from("abc"), COSTS), min_size=1, max_size=50))
def test_the_number_before_an_entry_is_its_position(items: list[tuple[str, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, (key, cost) in enumerate(items[:-1]):
        queue.push(queue.entry(number, (key, Priority.NORMAL), cost))
    key, cost = items[-1]
    mine = queue.entry(len(items), (key, Priority.NORMAL), cost)
    num_before = queue.num_before(mine)
    queue.push(mine)
    assert [pop(queue) for _ in range(len(items))].index(len(items)) == num_before
