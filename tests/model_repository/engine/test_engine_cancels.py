"""Cancels of requests, by their streams and by their cancel keys."""

from __future__ import annotations

import threading

import pytest

from model_repository.engine.inbox import CancelKey, EndStream
from model_repository.engine.pending_cancels import REMEMBERED_S
from tests.model_repository.engine.fake_engine import REGEX, Fake
from tests.waiting import DEADLINE_S, wait_until


def test_a_cancel_that_overtakes_its_request_is_remembered() -> None:
    fake = Fake(b"hello")
    fake.engine.post(CancelKey("secret"))
    fake.step(passed_s=1.0)
    gone, stays = fake.submit(cancel_key="secret"), fake.submit()
    fake.step(6)
    assert (gone.is_closed, gone.batches, stays.text()) == (True, [], "hello")
    assert fake.engine.stats().num_cancelled == 1


def test_a_cancelled_request_that_waits_to_be_prepared_is_neither_prepared_nor_started() -> None:
    fake = Fake(b"hello")
    prepared: list[str] = []
    may_go_on = threading.Event()

    def wait() -> None:
        prepared.append("one")
        assert may_go_on.wait(DEADLINE_S)

    fake.runtime.on_prepare = wait
    first = fake.submit(structured_output=REGEX)
    fake.step()
    gone = fake.submit(structured_output=REGEX, cancel_key="secret")
    fake.step()
    fake.engine.post(CancelKey("secret"))
    fake.step()
    fake.clock.now_s += REMEMBERED_S + 1
    may_go_on.set()
    wait_until(lambda: fake.num_messages == 2, "both come back")
    fake.step(6)
    assert (gone.is_closed, gone.batches, first.text(), prepared) == (True, [], "hello", ["one"])
    assert fake.engine.stats().num_cancelled == 1


@pytest.mark.parametrize("next_key", ["new", ""])
def test_cancelled_keys_are_forgotten_after_a_while(next_key: str) -> None:
    """One lived on until the next cancel came."""
    fake = Fake(b"hello")
    fake.engine.post(CancelKey("old"))
    fake.step()
    fake.clock.now_s += REMEMBERED_S + 1
    if next_key:
        fake.engine.post(CancelKey(next_key))
    late = fake.submit(cancel_key="old")
    fake.step(6)
    assert late.text() == "hello"


def test_a_second_cancel_of_a_key_renews_its_memory() -> None:
    fake = Fake(b"hello")
    for key in ("again", "other", "again", "last"):
        fake.engine.post(CancelKey(key))
        fake.step(passed_s=0.6 * REMEMBERED_S)
    responders = [fake.submit(cancel_key=key) for key in ("again", "other", "last")]
    fake.step(6)
    assert [responder.is_closed for responder in responders] == [True, False, True]


def test_a_key_in_use_is_refused() -> None:
    """A second request under it could not be cancelled once one of the two had ended."""
    fake = Fake(b"hello")
    first, second = fake.submit(cancel_key="secret"), fake.submit(cancel_key="secret")
    fake.step()
    assert second.error_message.startswith("[invalid_value] cancel_key: ")
    fake.engine.post(CancelKey("secret"))
    fake.step()
    assert first.is_closed


def test_an_empty_cancel_key_cancels_nothing() -> None:
    """A cancelled empty key was remembered, and took the next request without a key with it."""
    fake = Fake(b"hello")
    fake.engine.post(CancelKey(""))
    responder = fake.submit()
    fake.step(6)
    assert responder.text() == "hello"


def test_the_time_from_cancel_to_free_is_measured() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.step()
    fake.engine.post(EndStream(responder.number, fake.clock.now_s))
    fake.step(passed_s=0.25)
    assert fake.engine.stats().last_cancel_to_free_ms == pytest.approx(250)


def test_a_remembered_cancel_is_used_once() -> None:
    fake = Fake(b"hello")
    fake.engine.post(CancelKey("secret"))
    fake.submit(cancel_key="secret")
    second = fake.submit(cancel_key="secret")
    fake.step(6)
    assert second.text() == "hello"
