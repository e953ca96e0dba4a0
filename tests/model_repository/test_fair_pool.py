"""Threads that several senders share."""

from __future__ import annotations

import threading

import pytest

from model_repository.errors import TooManyWaiting
from model_repository.fair_pool import FairPool
from tests.waiting import DEADLINE_S, wait_until


class Seconds:
    """A clock that work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def order_of(pieces: list[tuple[str, float]]) -> list[str]:
    """Return the senders in the order of their work in one thread, of which each piece takes so many seconds."""
    clock, may_go_on, done = Seconds(), threading.Event(), list[str]()
    pool = FairPool(1, clock=clock)

    def work(sender: str, seconds: float) -> None:
        assert may_go_on.wait(DEADLINE_S)
        clock.now += seconds
        done.append(sender)

    for sender, seconds in pieces:
        pool.submit(sender, lambda sender=sender, seconds=seconds: work(sender, seconds))  # type: ignore[misc]
    may_go_on.set()
    pool.close()
    return done


def test_senders_alternate_with_equal_pieces_of_work() -> None:
    """The first piece begins before the others come."""
    assert "".join(order_of([(sender, 1.0) for sender in "aaaaabbbcc"])) == "abcabcabaa"


def test_a_sender_of_short_pieces_gets_as_much_time_as_one_of_long_pieces() -> None:
    """The turns were by number: a sender of texts of 450 kB got 99 of 100 seconds beside one of short texts."""
    order = order_of([("long", 10.0)] * 3 + [("short", 1.0)] * 40)
    assert [order[: at + 1].count("short") for at, sender in enumerate(order) if sender == "long"] == [0, 10, 20]


def test_a_sender_has_no_credit_for_the_time_in_which_it_had_no_work() -> None:
    clock, done = Seconds(), list[str]()
    pool = FairPool(1, clock=clock)

    def work(sender: str, following: str = "") -> None:
        for each in following:
            pool.submit(each, lambda each=each: work(each))  # type: ignore[misc]
        clock.now += 1.0
        done.append(sender)

    def first() -> None:
        pool.submit("a", lambda: work("a", "bbbbaaaa"))
        work("a")

    pool.submit("a", first)
    wait_until(lambda: len(done) == 10, "all work is done")
    pool.close()
    assert "".join(done) == "aa" + "ba" * 4


def test_work_of_several_senders_takes_the_earliest_of_their_turns() -> None:
    pool, may_end = FairPool(1), threading.Event()
    for sender in "aaabb":
        pool.submit(sender, lambda: assert_set(may_end))
    assert [pool.first_of(senders) for senders in ("abc", "c", "aac", "a")] == ["c", "c", "c", "a"]
    may_end.set()
    pool.close()


@pytest.mark.parametrize("num_per_sender", [1, 3])
def test_a_sender_alone_occupies_its_threads_and_another_finds_one(num_per_sender: int) -> None:
    pool, begun, may_end = FairPool(4, num_per_sender=num_per_sender), list[str](), threading.Event()

    def work(sender: str) -> None:
        begun.append(sender)
        assert may_end.wait(DEADLINE_S)

    for sender in "aaaaaab":
        pool.submit(sender, lambda sender=sender: work(sender))  # type: ignore[misc]
    wait_until(lambda: len(begun) == num_per_sender + 1, "the work has begun")
    assert sorted(begun) == [*"a" * num_per_sender, "b"]
    may_end.set()
    pool.close()
    assert sorted(begun) == [*"aaaaaab"]


def test_the_sizes_of_waiting_work_are_bounded_for_each_sender() -> None:
    pool, may_end, done = FairPool(2, "texts", max_size=10), threading.Event(), list[str]()
    pool.submit("a", lambda: done.append(f"a {may_end.wait(DEADLINE_S)}"), size=99)  # it does not wait
    pool.submit("a", lambda: done.append("waiting"), size=10)
    with pytest.raises(TooManyWaiting, match=r"^10 bytes of texts of this sender are waiting already$"):
        pool.submit("a", lambda: done.append("refused"), size=1)
    pool.submit("b", lambda: done.append("b"), size=99)
    wait_until(lambda: done == ["b"], "the other sender's work is done")
    may_end.set()
    wait_until(lambda: len(done) == 3, "the waiting work is done")
    pool.submit("a", lambda: done.append("again"), size=10)
    pool.close()
    assert done == ["b", "a True", "waiting", "again"]


def test_much_waiting_work_is_finished_at_the_close() -> None:
    """Each piece called the next one: a thousand exceeded Python's limit of nested calls."""
    pool, may_end, done = FairPool(1, max_waiting=3000), threading.Event(), list[int]()
    pool.submit("a", lambda: assert_set(may_end))
    for number in range(3000):
        pool.submit("a", lambda number=number: done.append(number))  # type: ignore[misc]
    closing = threading.Thread(target=pool.close)
    closing.start()
    wait_until(lambda: pool._threads._shutdown, "it is closing")
    may_end.set()
    closing.join()
    assert done == [*range(3000)]


def assert_set(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)
