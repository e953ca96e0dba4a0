"""Typed lines, in a file and for the arrow keys."""

from __future__ import annotations

import json
import os
import readline
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from frontend.cli import typed_lines
from frontend.cli.typed_lines import MAX_LINES, History, begin_lines, keep_line
from frontend.settings import SettingsError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def arrow_keys() -> Iterator[None]:
    """Begin and end without earlier lines."""
    readline.clear_history()
    yield
    readline.clear_history()


def test_a_new_file_is_its_owners_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        History(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_of_all_conversations_are_kept(path: Path) -> None:
    first, second = History(path), History(path)
    for history, line in ((first, "größer"), (second, "two\nlines"), (first, "three")):
        history.add(line)
    assert History(path).lines == ["größer", "two\nlines", "three"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_last_thousand_lines_are_kept(path: Path) -> None:
    lines = [str(number) for number in range(MAX_LINES)]
    History(path)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for line in ("x", "y"):
        History(path).add(line)
    assert History(path).lines == [*lines[2:], "x", "y"] and MAX_LINES == 1000


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_may_read_is_refused(mode: int, path: Path) -> None:
    path.touch()
    path.chmod(mode)
    error = f"^--history={path}: others may read or write the file: `chmod 600 {path}` ends that$"
    with pytest.raises(SettingsError, match=error):
        History(path)


def test_a_file_of_something_else_is_refused_and_kept(path: Path) -> None:
    path.touch(0o600)
    for text in ("mine\n", "5\n", "[]\n", '{"a": 1}\n', "\x00"):
        path.write_text(text)
        with pytest.raises(SettingsError, match=r"not a file of typed lines, each as JSON: name a new one$"):
            History(path)
        assert path.read_text() == text


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    for name, error in (("none/history", "No such file or directory"), (".", "Is a directory")):
        with pytest.raises(SettingsError, match=f"^--history={tmp_path / name}: {error}$"):
            History(tmp_path / name)
    with pytest.raises(SettingsError, match=r"^--history=/dev/null: expected a file$"):
        History(Path("/dev/null"))


def test_a_python_without_readline_keeps_no_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_lines, "readline", None)
    with pytest.raises(SettingsError, match="this Python has no readline"):
        History(path)
    begin_lines(None, lambda line, begin: [])
    keep_line("one", None)
    assert not path.exists()


@pytest.mark.usefixtures("arrow_keys")
def test_arrow_keys_bring_back_lines_of_earlier_conversations(path: Path) -> None:
    History(path).add("one")
    history = History(path)
    begin_lines(history, lambda line, begin: [])
    for line in ("two", "two", " ", "three"):
        keep_line(line, history)
    lines = [readline.get_history_item(place) for place in range(1, readline.get_current_history_length() + 1)]
    assert lines == History(path).lines == ["one", "two", "three"]
