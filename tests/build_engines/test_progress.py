"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from build_engines.progress import Progress, elapsed_text, following
from tests.waiting import wait_until


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("engine", 10**10, stream, clock, is_estimate=True)
    progress.set(10**9, "1 files")
    assert stream.getvalue() == ""  # not yet
    clock.now = 65.0
    progress.set(5 * 10**9, "2 files")
    assert stream.getvalue() == "\r\x1b[Kengine: 5.0 of about 10.0 GB (50 %), 2 files, 1 min 05 s"
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_known_size_gives_the_speed_and_the_time_left() -> None:
    clock = Clock()
    progress = Progress("downloading", 4 * 10**8, io.StringIO(), clock)
    assert progress.line() == "downloading: 0.0 of 400.0 MB (0 %), 0 s"
    clock.now = 10.0
    progress.set(10**8)
    assert progress.line() == "downloading: 100.0 of 400.0 MB (25 %), 10.0 MB/s, 30 s left"


def test_a_folder_is_followed_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.progress.TERMINAL_PERIOD_S", 0.001)
    (tmp_path / "before").write_bytes(b"1234")
    progress = Progress("downloading", 10, io.StringIO(), Clock())
    with following(tmp_path, progress):
        (tmp_path / "new").write_bytes(b"12345")
        wait_until(lambda: "50 %" in progress.line(), "half of the bytes")


def test_a_log_has_a_line_every_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    progress = Progress("engine", 0, io.StringIO(), clock)
    for second in range(100):
        clock.now = float(second)
        progress.add(10**9)
    progress.clear()
    assert caplog.messages == [
        "engine: 31.0 GB, 30 s",
        "engine: 61.0 GB, 1 min 00 s",
        "engine: 91.0 GB, 1 min 30 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text
