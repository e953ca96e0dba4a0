"""Threads that several senders share."""

from __future__ import annotations

import threading

import pytest

from model_repository.errors import TooManyWaiting
from model_repository.fair_pool import FairPool
from tests.waiting import DEADLINE_S, wait_until


def test_senders_alternate_with_one_piece_of_work_at_a_time() -> None:
    pool, may_go_on, done = FairPool(1), threading.Event(), list[str]()
    pool.submit("a", lambda: done.append(f"a0 {may_go_on.wait(DEADLINE_S)}"))
    for number in (1, 2):
        for sender in "aabbc":
            pool.submit(sender, lambda text=f"{sender}{number}": done.append(text))  # type: ignore[misc]
    may_go_on.set()
    wait_until(lambda: len(done) == 11, "all work is done")
    pool.close()
    assert done == ["a0 True", *["b1", "c1", "a1", "b1", "c2", "a1", "b2", "a2", "b2", "a2"]]


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
    pool, may_end, done = FairPool(2, "bytes", max_waiting=10), threading.Event(), list[str]()
    pool.submit("a", lambda: done.append(f"a {may_end.wait(DEADLINE_S)}"), size=99)  # it does not wait
    pool.submit("a", lambda: done.append("waiting"), size=10)
    with pytest.raises(TooManyWaiting, match=r"^10 bytes of this sender are waiting already$"):
        pool.submit("a", lambda: done.append("refused"))
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
