"""Lines that a person types. With readline the arrow keys bring earlier ones back, and Tab completes."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from frontend.settings import SettingsError

try:
    import readline
except ImportError:  # a Python without it
    readline = None  # type: ignore[assignment]

MAX_LINES = 1000  # of a file


class History:
    """Typed lines in a file that only its owner may read, each as JSON. Conversations at the same time may share it.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._locked() as file:
            self.lines = _lines(file)  # at the beginning

    def add(self, line: str) -> None:
        """Keep a line, and the last ones before it.

        Raises:
            SettingsError: the file cannot be written, or another program has changed it.
        """
        with self._locked() as file:
            lines = [*_lines(file), line][-MAX_LINES:]
            file.seek(0)
            file.writelines(f"{json.dumps(each, ensure_ascii=False)}\n" for each in lines)
            file.truncate()

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        try:
            if readline is None:
                raise ValueError("this Python has no readline, which keeps typed lines")
            with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
                _check(os.fstat(file.fileno()), self._path)
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
                yield file
        except OSError as exc:
            raise SettingsError(f"--history={self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise SettingsError(f"--history={self._path}: {exc}") from exc


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("expected a file")
    if status.st_uid != os.geteuid():
        raise ValueError("the file is another user's")
    if status.st_mode & 0o077:
        raise ValueError(f"others may read or write the file: `chmod 600 {path}` ends that")


def _lines(file: TextIO) -> list[str]:
    try:
        lines = [json.loads(line) for line in file]
    except ValueError:
        lines = [None]
    if not all(isinstance(line, str) for line in lines):
        raise ValueError("not a file of typed lines, each as JSON: name a new one")
    return lines


def begin_lines(history: History | None, complete: Callable[[str, int], list[str]]) -> None:
    """Have readline offer earlier lines and completions from now on.

    Args:
        complete: returns how the last word of a line may go on, given the line and the word's first character.
    """
    if readline is None:
        return
    found: list[str] = []

    def completion(word: str, number: int) -> str | None:
        if number == 0:
            found[:] = complete(readline.get_line_buffer()[: readline.get_endidx()], readline.get_begidx())
        return found[number] if number < len(found) else None

    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one text; Python turns it off
    readline.set_completer_delims(" \n/")
    readline.set_completer(completion)
    readline.set_auto_history(False)  # answers to questions of commands are not kept
    for line in history.lines if history else ():
        readline.add_history(line)


def keep_line(line: str, history: History | None) -> None:
    """Keep a line for the arrow keys, and in a file. A repetition is not kept.

    Raises:
        SettingsError: the file cannot be written.
    """
    length = readline.get_current_history_length() if readline else 0
    if readline is None or not line.strip() or (length and readline.get_history_item(length) == line):
        return
    readline.add_history(line)
    if history is not None:
        history.add(line)
