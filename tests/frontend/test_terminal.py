"""What commands and servers write of others does not steer a terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from frontend.__main__ import main
from frontend.launcher import command
from frontend.launcher.errors import LaunchError
from frontend.launcher.launcher import LauncherSettings
from frontend.launcher.signals import EndingSignals
from frontend.launcher.state_lock import server_lock
from frontend.telemetry.log_lines import configure_logging
from frontend.terminal import Colour, print_error, write_coloured
from model_repository.system.terminal_text import STEERING, escaped_output
from tests.another_machine import needs_root, small_disk
from tests.build_engines.serving_home import serving

_HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b2J\r\u202ex"


class Terminal(io.StringIO):
    """Keeps what is written."""

    def isatty(self) -> bool:
        return True


def steers(text: str) -> bool:
    """Whether a text has one of the characters that steer a terminal."""
    return bool(STEERING & set(map(ord, text)))


def test_colours_are_the_only_orders_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    print_error("\x1b[2J", escaped_output(terminal))
    write_coloured("\x07", Colour.DIM, escaped_output(terminal))
    assert terminal.getvalue() == "\x1b[31merror:\x1b[0m \\u001b[2J\n\x1b[2m\\u0007\x1b[0m"


@pytest.mark.parametrize(
    "words",
    [
        ["ps"],
        ["stop", "--home", f"{_HOSTILE}2"],
        ["completion", _HOSTILE],
        ["launch", "claude", "--url", f"ftp://{_HOSTILE}"],
        ["bench", f"http://{_HOSTILE}:1"],
        ["keys", "list", "--file", _HOSTILE],
        ["health", "--triton", _HOSTILE],
        ["serve", _HOSTILE, "--repository", _HOSTILE],
        ["doctor"],
        [_HOSTILE],
    ],
    ids=lambda words: words[0],
)
def test_commands_do_not_repeat_a_text_raw(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / _HOSTILE
    monkeypatch.setenv("CONCH_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    with serving(home, f"model{_HOSTILE}"), contextlib.suppress(SystemExit):
        main(words)
    captured = capsys.readouterr()
    assert "title" in captured.out + captured.err
    assert not steers(captured.out + captured.err)


def test_a_command_of_the_store_does_not_repeat_a_name_raw() -> None:
    words = [sys.executable, "-P", "-m", "frontend", "rm", "x\x1b[2J"]  # which becomes build_engines
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: x\\u001b[2J: not in the store; `conch list` shows the models\n",
    )


def test_the_log_of_a_frontend_does_not_steer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure_logging("text")
    logging.getLogger("frontend").warning("%s", _HOSTILE)
    assert stream.getvalue() and not steers(stream.getvalue())


def test_neither_the_terminal_nor_the_log_of_serve_has_a_raw_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """A launcher whose child logs a line and ends."""

        def __init__(
            self, settings: LauncherSettings, lock: TextIO, log: Callable[[str], None], notify: Callable[[str], None]
        ) -> None:
            self._log = log

        interrupt = start = __enter__ = __exit__ = lambda self, *_: None

        def wait_until_ready(self) -> list[str]:
            self._log(f"[triton] {_HOSTILE}")
            self._log(f"[frontend] 2026-11-28T15:47:12.123Z WARNING {_HOSTILE}")
            raise LaunchError(_HOSTILE, [_HOSTILE])

    monkeypatch.setattr(command, "Launcher", Broken)
    monkeypatch.setenv("NO_COLOR", "1")
    terminal: Any = Terminal()
    settings = LauncherSettings(repository=tmp_path, environment={})
    with EndingSignals() as signals, server_lock(tmp_path, "any", is_shared=True) as lock:
        assert command.serve(settings, terminal, escaped_output(terminal), signals=signals, lock=lock) == 1
    log = Path(lock.name).with_name(command.LOG_FILE).read_text()
    assert log.count("title") == 2 and not steers(log)
    shown = terminal.getvalue().replace("\r\x1b[K", "")
    assert shown.count("title") == 3 and not steers(shown)


def test_a_line_takes_the_place_of_the_time_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning stood behind it: `Loading the models: 17 s[frontend] WARNING`."""
    monkeypatch.setattr(command, "repeated", lambda show, period_s: contextlib.nullcontext(show()))
    terminal = Terminal()
    with (loading := command._LoadingLine(terminal)), loading.hidden():
        terminal.write("a warning\n")
    assert terminal.getvalue() == "\r\x1b[KLoading the models: 0 s\r\x1b[Ka warning\n"


@needs_root()
def test_a_log_on_a_full_disk_is_named_once_and_ends_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    with small_disk(tmp_path / "disk", 1 << 16) as disk, command._log_file(disk / "serve.log", told.append) as write:
        for _ in range(100):
            write("x" * 1000)
    assert told == [f"{disk}/serve.log: No space left on device: lines of the log are missing"]
