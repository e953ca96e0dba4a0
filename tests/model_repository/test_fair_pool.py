"""Threads that several senders share."""

from __future__ import annotations

import threading

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


def test_a_sender_never_occupies_two_threads() -> None:
    pool, busy, both = FairPool(2), threading.Lock(), list[bool]()

    def work() -> None:
        both.append(busy.acquire(blocking=False))
        busy.release()

    for _ in range(50):
        pool.submit("a", work)
    pool.close()
    assert both == [True] * 50
