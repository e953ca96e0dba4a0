"""The files by which the arbiter follows and stops the load of an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model_repository.contract import arbiter_files
from model_repository.contract.arbiter_files import note_share, share_of_load, stop_load, told_progress


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arbiter_files, "_INTERVAL_S", 0.0)


def test_the_share_of_a_load_is_known_while_it_runs() -> None:
    assert share_of_load("a") is None
    with told_progress("a"):
        assert share_of_load("a") == 0.0
        assert note_share(0.25) is True
        assert share_of_load("a") == 0.25
    assert share_of_load("a") is None


def test_a_stopped_load_does_not_go_on() -> None:
    with told_progress("a"):
        stop_load("a")
        assert note_share(0.5) is False
        assert note_share(0.6) is False


def test_a_stop_just_before_the_share_is_written_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine had seen the file, and wrote it anew."""
    with told_progress("a"):
        stop_load("a")
        monkeypatch.setattr(Path, "exists", lambda path: True)
        note_share(0.5)
        assert not os.listdir()


def test_a_load_outside_of_an_engine_goes_on() -> None:
    stop_load("a")
    assert note_share(0.5) is True


def test_a_share_that_cannot_be_read_is_not_known() -> None:
    Path("a.loading").touch()
    assert share_of_load("a") is None
