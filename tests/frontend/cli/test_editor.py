"""A text in an editor: programs stand in for the person's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontend.cli.editor import edited


@pytest.fixture(autouse=True)
def no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


def shell(program: str) -> str:
    """Return an editor: a program of the shell, for which $0 is the file."""
    return f"sh -c '{program}'"


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ('printf " b\\n\\n" >> "$0"', "ä b"),
        ('echo c > "$0.new"; mv "$0.new" "$0"', "c"),
        ("", "ä"),
        ('trap : INT; kill -INT $PPID; echo d > "$0"', "d"),  # Emacs on a terminal sends SIGINT for a key
    ],
)
def test_the_saved_text_is_returned(program: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", shell(program))
    assert edited("ä") == text


def test_only_the_person_may_read_the_file_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    program = f'touch "$0~"; stat -c "%a %n" "$(dirname "$0")" "$0" > {record}'
    monkeypatch.setenv("EDITOR", shell(program))
    before = os.umask(0)
    try:
        edited("a")
    finally:
        os.umask(before)
    folder, file = (line.split() for line in record.read_text().splitlines())
    assert (folder[0], file[0]) == ("700", "600") and not Path(folder[1]).exists()


@pytest.mark.parametrize(
    ("editor", "error"),
    [
        (shell("exit 3"), "sh has ended with status 3: nothing is sent"),
        ("no-such-editor -x", "no-such-editor: No such file or directory: nothing is sent"),
        (shell('echo > "$0"'), "the text is empty: nothing is sent"),
        (shell('printf "\\351" > "$0"'), "sh has left no text in UTF-8: nothing is sent"),
        ("rm", "rm has left no text in UTF-8: nothing is sent"),
        ("vi 'a", "No closing quotation"),
    ],
)
def test_an_editor_that_fails_gives_no_text(editor: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", editor)
    with pytest.raises(ValueError, match=f"^{error}$"):
        edited("a")


def test_visual_comes_before_editor_and_nano_before_vi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^there is no editor: the variable EDITOR names one$"):
        edited("a")
    found = []
    for name in ("vi", "nano", "mine", "visual"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} > "$1"\n')
        (tmp_path / name).chmod(0o755)
        if name in ("mine", "visual"):
            monkeypatch.setenv({"mine": "EDITOR"}.get(name, "VISUAL"), name)
        found.append(edited("a"))
    assert found == ["vi", "nano", "mine", "visual"]
