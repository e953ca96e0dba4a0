"""Cancels from the detokenizer's process to the engine's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_repository.contract.cancel_channel import CancelReceiver, CancelSender
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the server. Its path is too long for the path of a socket."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ensemble() -> str:
    return "test"


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
    assert "1 streams or requests could not be cancelled" in caplog.text
    cancelled: queue.Queue[int] = queue.Queue()
    receiver = CancelReceiver(ensemble, cancelled.put)
    sender.cancel(5)
    assert cancelled.get(timeout=DEADLINE_S) == 5
    receiver.close()


def test_many_cancels_arrive_although_few_messages_may_wait(ensemble: str, sender: CancelSender) -> None:
    """The kernel lets ten messages wait: of a hundred requests that hung up together, most stayed."""
    may_go_on, cancelled = threading.Event(), list[int]()

    def cancel(number: int) -> None:
        assert may_go_on.wait(DEADLINE_S)
        cancelled.append(number)

    receiver = CancelReceiver(ensemble, cancel)
    sender.cancel(0)
    sender.cancel(*range(1, 1000))
    may_go_on.set()
    wait_until(lambda: len(cancelled) == 1000, "all have arrived")
    receiver.close()
    assert cancelled == [*range(1000)]


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


def test_the_sockets_are_in_the_servers_own_folder_and_a_new_engine_takes_the_place_of_a_killed_one(
    folder: Path, ensemble: str
) -> None:
    """They were in /tmp: another user could take their folder's name, and those of killed engines stayed."""
    killed, engine = (CancelReceiver(ensemble, lambda number: None) for _ in range(2))
    assert len([*folder.iterdir()]) == 1
    engine.close()
    assert not [*folder.iterdir()]
    killed.close()


def test_ensembles_do_not_receive_each_others_cancels(ensemble: str, sender: CancelSender) -> None:
    mine: queue.Queue[int] = queue.Queue()
    others: queue.Queue[int] = queue.Queue()
    receivers = [CancelReceiver(ensemble, mine.put), CancelReceiver(f"{ensemble}-other", others.put)]
    sender.cancel(5)
    assert mine.get(timeout=DEADLINE_S) == 5
    for receiver in receivers:
        receiver.close()
    assert others.empty()
