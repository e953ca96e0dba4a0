"""Loads in processes of their own: here each loader is a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from model_repository.arbiter import loading
from model_repository.arbiter.loading import Loader, Loaders
from model_repository.contract.tensors import LOADERS
from model_repository.errors import EngineFailed

TIMEOUT_S = 20.0

type Work = Callable[[Sequence[str]], None]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Work], Loader]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "_CONNECT_S", 0.0)
    begun = []

    def begin(name: str, work: Work) -> Loader:
        begun.append(Loader(name, work))
        return begun[-1]

    yield begin
    for loader in begun:
        with contextlib.suppress(OSError):  # it is closed
            loader.close()


def test_a_loader_gets_the_names_of_each_order_one_after_the_other(begin: Callable[[str, Work], Loader]) -> None:
    orders: list[Sequence[str]] = []
    begin(LOADERS[0], orders.append)
    loaders = Loaders(lambda name: None)
    loaders._free = [LOADERS[0]]
    assert [loaders.load(["a", "ä"]), loaders.load(["b"])] == ["", ""]
    assert orders == [["a", "ä"], ["b"]]


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("no"), "no"), (ValueError(), "ValueError"), (ValueError("ä" * 10**6), "ä" * loading._MAX_TEXT)],
    ids=["text", "no text", "long"],
)
def test_the_reason_of_a_failure_comes_back_cut(
    begin: Callable[[str, Work], Loader], error: Exception, text: str
) -> None:
    """A text that did not fit into a message was cut to no JSON, or not sent, which looked like a dead loader."""

    def fail(_: Sequence[str]) -> None:
        raise error

    begin(LOADERS[0], fail)
    assert Loaders(lambda name: None).load(["a"]) == text


def test_as_many_loads_run_at_the_same_time_as_there_are_loaders(begin: Callable[[str, Work], Loader]) -> None:
    together, ended = threading.Barrier(len(LOADERS)), []
    for name in LOADERS:
        begin(name, lambda names: ended.append(together.wait(TIMEOUT_S)))
    loaders = Loaders(lambda name: None)
    threads = [threading.Thread(target=loaders.load, args=(["a"],)) for _ in range(2 * len(LOADERS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(ended) == 2 * len(LOADERS)


def test_a_load_without_a_loader_fails_and_keeps_no_place(begin: Callable[[str, Work], Loader]) -> None:
    loaders = Loaders(lambda name: None)
    for _ in range(len(LOADERS) + 1):
        with pytest.raises(EngineFailed, match="does not run"):
            loaders.load(["a"])


def test_a_loader_that_died_idle_is_started_for_the_order(begin: Callable[[str, Work], Loader]) -> None:
    """The load failed, and the models of its requests with it."""
    assert Loaders(lambda name: begin(name, lambda names: None)).load(["a"]) == ""


def test_a_loader_that_dies_while_it_loads_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    started = list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mortal:
        mortal.bind(f"{LOADERS[0]}.sock")
        mortal.listen()
        thread = threading.Thread(target=lambda: mortal.accept()[0].close())
        thread.start()
        with pytest.raises(EngineFailed, match="has ended"):
            Loaders(started.append).load(["a"])
        thread.join(TIMEOUT_S)
    assert started == [LOADERS[0]]


def test_a_loader_takes_the_place_of_a_killed_one(begin: Callable[[str, Work], Loader]) -> None:
    begin(LOADERS[0], lambda names: None)
    begin(LOADERS[0], lambda names: None)  # the path is taken
    assert Loaders(lambda name: None).load(["a"]) == ""


def test_a_closed_loader_takes_no_order_and_its_thread_ends(begin: Callable[[str, Work], Loader]) -> None:
    """It took one more order, and then used a processor for nothing."""
    before = set(threading.enumerate())
    loader = begin(LOADERS[0], lambda names: None)
    [thread] = set(threading.enumerate()) - before
    loader.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    with pytest.raises(EngineFailed):
        Loaders(lambda name: None).load(["a"])
