"""Loads in processes of their own: here each loader is a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from model_repository.arbiter import loading
from model_repository.arbiter.loading import NUM_LOADERS, Loader, Loaders
from model_repository.errors import EngineFailed

TIMEOUT_S = 20.0

type Work = Callable[[Sequence[str]], None]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Work], Loader]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "_CONNECT_S", 0.0)
    begun = []

    def begin(number: int, work: Work) -> Loader:
        begun.append(Loader(number, work))
        return begun[-1]

    yield begin
    for loader in begun:
        with contextlib.suppress(OSError):  # it is closed
            loader.close()


def test_a_loader_gets_the_names_of_each_order_one_after_the_other(begin: Callable[[int, Work], Loader]) -> None:
    orders: list[Sequence[str]] = []
    begin(0, orders.append)
    loaders = Loaders(lambda: None)
    loaders._free = [0]
    assert [loaders.load(["a", "ä"]), loaders.load(["b"])] == ["", ""]
    assert orders == [["a", "ä"], ["b"]]


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("no"), "no"), (ValueError(), "ValueError"), (ValueError("ä" * 10**6), "ä" * loading._MAX_TEXT)],
    ids=["text", "no text", "long"],
)
def test_the_reason_of_a_failure_comes_back_cut(
    begin: Callable[[int, Work], Loader], error: Exception, text: str
) -> None:
    """A text that did not fit into a message was cut to no JSON, or not sent, which looked like a dead loader."""

    def fail(_: Sequence[str]) -> None:
        raise error

    begin(0, fail)
    assert Loaders(lambda: None).load(["a"]) == text


def test_as_many_loads_run_at_the_same_time_as_there_are_loaders(begin: Callable[[int, Work], Loader]) -> None:
    together, ended = threading.Barrier(NUM_LOADERS), []
    for number in range(NUM_LOADERS):
        begin(number, lambda names: ended.append(together.wait(TIMEOUT_S)))
    loaders = Loaders(lambda: None)
    threads = [threading.Thread(target=loaders.load, args=(["a"],)) for _ in range(2 * NUM_LOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(ended) == 2 * NUM_LOADERS


def test_a_load_without_a_loader_fails_and_keeps_no_place(begin: Callable[[int, Work], Loader]) -> None:
    loaders = Loaders(lambda: None)
    for _ in range(NUM_LOADERS + 1):
        with pytest.raises(EngineFailed, match="does not run"):
            loaders.load(["a"])


def test_a_loader_that_died_idle_is_started_for_the_order(begin: Callable[[int, Work], Loader]) -> None:
    """The load failed, and the models of its requests with it."""
    assert Loaders(lambda: [begin(number, lambda names: None) for number in range(NUM_LOADERS)]).load(["a"]) == ""


def test_a_loader_that_dies_while_it_loads_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    started = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mortal:
        mortal.bind("loader-0.sock")
        mortal.listen()
        thread = threading.Thread(target=lambda: mortal.accept()[0].close())
        thread.start()
        with pytest.raises(EngineFailed, match="has ended"):
            Loaders(lambda: started.append(1)).load(["a"])
        thread.join(TIMEOUT_S)
    assert started == [1]


def test_a_loader_takes_the_place_of_a_killed_one(begin: Callable[[int, Work], Loader]) -> None:
    begin(0, lambda names: None)
    begin(0, lambda names: None)  # the path is taken
    assert Loaders(lambda: None).load(["a"]) == ""


def test_a_closed_loader_takes_no_order_and_its_thread_ends(begin: Callable[[int, Work], Loader]) -> None:
    """It took one more order, and then used a processor for nothing."""
    before = set(threading.enumerate())
    loader = begin(0, lambda names: None)
    [thread] = set(threading.enumerate()) - before
    loader.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    with pytest.raises(EngineFailed):
        Loaders(lambda: None).load(["a"])
