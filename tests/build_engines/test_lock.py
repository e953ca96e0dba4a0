"""One builder at a time, and leftovers of killed builders."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from build_engines.lock import lock_path, locked, remove_leftovers


def is_locked(path: Path) -> bool:
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_lock_is_exclusive_in_its_block_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path, "builds x"):
        assert is_locked(path)
        holder = json.loads(path.read_text())
        assert (holder["pid"], holder["purpose"]) == (os.getpid(), "builds x")
    assert not is_locked(path)


def test_the_descriptor_holds_the_lock_too(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, "builds x") as held:
        inherited = os.dup(held)
    assert is_locked(path)
    os.close(inherited)
    assert not is_locked(path)


def test_a_waiting_build_names_the_process_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, told, order = tmp_path / ".lock", threading.Event(), list[str]()

    def second() -> None:
        with locked(path, "builds y"):
            order.append("second")

    class Tell(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    handler = Tell()
    logging.getLogger("build_engines.lock").addHandler(handler)
    with locked(path, "builds x"):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(60)
        order.append("first")
    thread.join()
    logging.getLogger("build_engines.lock").removeHandler(handler)
    assert order == ["first", "second"]
    assert f"waiting for process {os.getpid()} on " in caplog.text
    assert ": builds x" in caplog.text


def test_leftovers_of_builders_that_are_gone_are_removed(tmp_path: Path) -> None:
    left = {".busy.abcdefgh", ".nobodys.abcdefgh", ".mine-1.2.git", "mine-1.2"}
    for name in (".mine-1.2.abcdefg_", ".mine-1.2.abcdefgh.old", ".gone.abcdefgh", *left):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / ".gone.lock").touch()
    with locked(lock_path(tmp_path / "busy"), "builds busy"), locked(lock_path(tmp_path / "mine-1.2"), "builds mine"):
        remove_leftovers(tmp_path / "mine-1.2")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == left
