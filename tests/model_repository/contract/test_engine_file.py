"""The files by which the arbiter follows an engine, and stops it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_repository.contract import engine_file
from model_repository.contract.engine_file import (
    LEFT,
    READY,
    begin_load,
    is_stopped,
    note_share,
    note_state,
    share_of_load,
    state_of,
    stop_engine,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_file, "_INTERVAL_S", 0.0)
    for name in ("_own", "_own_stop"):
        monkeypatch.setattr(engine_file, name, None)


def test_an_engine_tells_its_share_then_its_state() -> None:
    assert (state_of("a"), share_of_load("a")) == (None, None)
    begin_load("a")
    assert share_of_load("a") == 0.0
    assert note_share(0.25) is True
    assert share_of_load("a") == 0.25
    for state in (READY, LEFT):
        note_state(state)
        assert (state_of("a"), share_of_load("a")) == (state, None)


def test_a_stopped_load_does_not_go_on_until_the_next_one() -> None:
    begin_load("a")
    assert not is_stopped("a")
    stop_engine("a")
    assert note_share(0.5) is False
    assert is_stopped("a")
    begin_load("a")
    assert note_share(0.6) is True


def test_a_load_outside_of_an_engine_goes_on() -> None:
    stop_engine("a")
    assert note_share(0.5) is True


def test_a_killed_engine_has_no_state() -> None:
    code = "import sys; from model_repository.contract.engine_file import *; begin_load('a'); print(); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        assert state_of("a") == "0.000"
        engine.kill()
    assert state_of("a") is None
    begin_load("a")
    assert state_of("a") == "0.000"
