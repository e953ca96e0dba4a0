"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import re
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


def test_a_terminal_has_one_line_that_is_rewritten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    with Progress("engine", 10**10, is_estimate=True) as progress:
        progress.set(10**9, "1 files")
        assert stream.getvalue() == ""  # not yet
        clock.now = 65.0
        progress.set(5 * 10**9, "2 files")
        line = stream.getvalue()
        assert line.startswith("\rengine:  50%|") and line.endswith("| 5.00G of about 10.0G [01:05, 2 files]")
    assert stream.getvalue().removeprefix(line).strip() == ""
    assert stream.getvalue().endswith("\r"), "the next line begins at the left"


def test_a_folder_is_followed_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.progress.TERMINAL_PERIOD_S", 0.001)
    (tmp_path / "before").write_bytes(b"1234")
    with Progress("downloading", 10) as progress, following(tmp_path, progress):
        (tmp_path / "new").write_bytes(b"12345")
        wait_until(lambda: "50%" in str(progress), "half of the bytes")


def test_a_log_has_a_line_every_half_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with Progress("downloading", 400 * 10**6) as progress:
        for second in range(1, 80):
            clock.now = float(second)
            progress.update(10**6)
    assert [re.sub("[|].*[|]", "", message) for message in caplog.messages] == [
        "downloading:   8% 30.0M/400M [00:30<06:10, 1.00MB/s]",
        "downloading:  15% 60.0M/400M [01:00<05:40, 1.00MB/s]",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


def test_a_note_of_others_does_not_steer_the_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    with Progress("title \x1b[2J", 100) as progress:
        clock.now += 10
        progress.set(50, "note \x07")
    assert "title \\u001b[2J" in stream.getvalue() and "note \\u0007" in stream.getvalue()
    assert not set("\x1b\x07") & set(stream.getvalue())
