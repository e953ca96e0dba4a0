"""Cancels from the detokenizer's process to the engine's."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator

import pytest

from model_repository.cancel_channel import CancelReceiver, CancelSender
from tests.waiting import DEADLINE_S


@pytest.fixture
def ensemble() -> str:
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def sender(ensemble: str) -> Iterator[CancelSender]:
    sender = CancelSender(ensemble)
    yield sender
    sender.close()


def test_a_cancel_arrives_once(ensemble: str, sender: CancelSender) -> None:
    cancelled: queue.Queue[int] = queue.Queue()
    receiver = CancelReceiver(ensemble, cancelled.put)
    for number in (2**57, 2**57, 7):
        sender.cancel(number)
    assert [cancelled.get(timeout=DEADLINE_S) for _ in range(2)] == [2**57, 7]
    receiver.close()
    assert cancelled.empty()


def test_a_cancel_without_a_receiver_is_tried_again(
    ensemble: str, sender: CancelSender, caplog: pytest.LogCaptureFixture
) -> None:
    sender.cancel(5)
    assert "5 could not be cancelled" in caplog.text
    cancelled: queue.Queue[int] = queue.Queue()
    receiver = CancelReceiver(ensemble, cancelled.put)
    sender.cancel(5)
    assert cancelled.get(timeout=DEADLINE_S) == 5
    receiver.close()


def test_ensembles_do_not_receive_each_others_cancels(ensemble: str, sender: CancelSender) -> None:
    mine: queue.Queue[int] = queue.Queue()
    others: queue.Queue[int] = queue.Queue()
    receivers = [CancelReceiver(ensemble, mine.put), CancelReceiver(f"{ensemble}-other", others.put)]
    sender.cancel(5)
    assert mine.get(timeout=DEADLINE_S) == 5
    for receiver in receivers:
        receiver.close()
    assert others.empty()


def test_a_new_engine_gets_cancels_while_the_old_one_closes(ensemble: str, sender: CancelSender) -> None:
    """The old engine's end was sent to the new engine, which stopped listening while the old one waited for ever."""
    old: queue.Queue[int] = queue.Queue()
    new: queue.Queue[int] = queue.Queue()
    old_receiver, new_receiver = CancelReceiver(ensemble, old.put), CancelReceiver(ensemble, new.put)
    old_receiver.close()
    sender.cancel(5)
    assert new.get(timeout=DEADLINE_S) == 5
    new_receiver.close()
    assert old.empty()
