"""One child process, which is real, and its lines in a log of several processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from frontend.launcher.child import Child, json_line, text_line
from model_repository.system.log_time import TIME
from tests.launching import untimed
from tests.processes import is_running
from tests.waiting import wait_until

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(60)"
)


def child(source: str, lines: list[str], secret: str = "") -> Child:
    command = [sys.executable, "-c", source, *([secret] if secret else [])]
    return Child("triton", command, os.environ, log=lambda line: lines.append(untimed(line)), secret=secret)


def ended(source: str, lines: list[str] | None = None) -> Child:
    """Run a program to its end, read its log, and return its child."""
    found = child(source, [] if lines is None else lines)
    found.start()
    wait_until(lambda: not found.is_running, "it has ended")
    found.kill()  # waits until its log is read
    return found


@pytest.mark.parametrize(("number", "has_crashed"), [(signal.SIGABRT, True), (signal.SIGKILL, False)])
def test_a_crash_is_told_from_a_kill(number: signal.Signals, has_crashed: bool) -> None:
    assert ended(f"import os; os.kill(os.getpid(), {number:d})").has_crashed is has_crashed


def test_a_child_that_ignores_sigterm_is_killed_and_can_be_started_again():
    lines: list[str] = []
    deaf = child(DEAF, lines)
    for num_starts in (1, 2):
        deaf.start()
        wait_until(lambda: lines.count("[triton] started") == num_starts, "it started")  # noqa: B023
        pid = deaf.pid
        deaf.stop(grace_s=0.05)
        assert not deaf.is_running and not is_running(pid)
        assert deaf.how_it_ended() == "triton was killed by SIGKILL"
        assert deaf.last_lines == ["started"]


def test_a_triton_that_hangs_in_its_handler_of_a_fatal_signal_is_killed() -> None:
    """With a corrupt heap the handler of SIGABRT waits for itself; the health checks noticed that only after 30 s."""
    hung = child(DEAF.replace("started", "Signal (6) received."), [])
    hung.start()
    wait_until(lambda: not hung.is_running, "it is killed", timeout_s=30)
    assert hung.how_it_ended() == "triton was killed by SIGKILL"


def test_the_reasons_of_stages_that_do_not_load_are_kept_beyond_the_last_lines():
    line = "ERROR model_repository.triton_shell: demo__engine does not load: built for 8 GPUs: build it again"
    ending = ended(f"print({line!r}); [print('| a table |') for _ in range(99)]; raise SystemExit(3)")
    assert ending.how_it_ended() == "triton ended with status 3"
    assert ending.load_failures == {"demo__engine": "built for 8 GPUs: build it again"}
    assert set(ending.last_lines) == {"| a table |"}


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (
            "E1126 01:25:32.5 25378 model_lifecycle.cc:642] \"failed to load 'm__engine' version 1: Internal: "
            "ModuleNotFoundError: No module named 'nosuch'\\n\\nAt:\\n  /r/m__engine/1/model.py(13)\"",
            {"m__engine": "Internal: ModuleNotFoundError: No module named 'nosuch'"},
        ),
        (
            "E1126 01:25:23.1 24928 model_repository_manager.cc:1460] \"Poll failed for model directory 'm__engine': "
            'failed to read text proto from repository/m__engine/config.pbtxt"',
            {"m__engine": "failed to read text proto from repository/m__engine/config.pbtxt"},
        ),
    ],
)
def test_tritons_own_reasons_are_known(line: str, failure: dict[str, str]) -> None:
    assert ended(f"print({line!r}); print({line.replace('failed', 'failed again')!r})").load_failures == failure


@pytest.mark.parametrize("cause", ["libx: not found", "E1126 01:25:23.1 no socket", ""])
def test_the_problem_is_the_last_line_that_may_name_a_cause(cause: str) -> None:
    usual = [
        "I1126 01:25:23.1 waits",
        "+--+",
        "| a |",
        "",
        'E1126 01:25:23.1 "CudaDriverHelper has not been initialized."',
    ]
    ending = ended(f"print({chr(10).join([cause, *usual])!r})")
    assert ending.last_problem == (cause or "its log names no cause")


@pytest.mark.parametrize(("driver", "num_lines"), [("missing", 1), ("", 2)])
def test_a_machine_without_gpus_logs_no_error_about_them(
    driver: str, num_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.launcher.child._NVIDIA_DRIVER", tmp_path / driver)
    lines: list[str] = []
    ended("print('E1126 01:25:23.1 unable to create stream for demo: CUDA driver version is insufficient\\nb')", lines)
    assert len(lines) == num_lines and lines[-1] == "[triton] b"


def test_ended_stages_that_are_not_waited_for_are_found() -> None:
    source = "import os, signal, time\nif os.fork() == 0: os._exit(3)\n"
    source += "if os.fork() == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    parent = child(source, [])
    parent.start()
    wait_until(lambda: len(parent.ended_stages()) == 2, "both have ended")
    expected = {"a stage of triton ended with status 3", "a stage of triton was killed by SIGKILL"}
    assert set(parent.ended_stages().values()) == expected
    parent.kill()


def test_lines_are_whole_however_they_are_written():
    lines: list[str] = []
    source = "import sys, time\nfor part in ('a', 'b\\nc\\n\\n', 'é' * 100_000, '\\nd'):\n    "
    source += "sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.02)"
    ended(source, lines)
    assert lines == [f"[triton] {text}" for text in ("ab", "c", "", "é" * 100_000, "d")]


def test_a_secret_of_the_command_line_is_overwritten_once_triton_has_read_it():
    # Every user of the machine sees command lines, and Triton takes its key in no other way.
    source = "import sys, time; print('a line of the loader', flush=True); "
    source += "print('W1122 19:48:14.2 1 x.cc:1] has read', sys.argv[1], flush=True); time.sleep(60)"
    lines: list[str] = []
    secret = "secret" * 4
    triton = child(source, lines, secret)
    for num_starts in (1, 2):
        triton.start()
        wait_until(lambda: sum("has read" in line for line in lines) == num_starts, "it started")  # noqa: B023
        command_line = Path(f"/proc/{triton.pid}/cmdline").read_bytes()
        triton.kill()
        assert secret.encode() not in command_line
        assert command_line.endswith(b"\0" + b"*" * len(secret) + b"\0")
    assert lines.count(f"[triton] W1122 19:48:14.2 1 x.cc:1] has read {secret}") == 2


def test_a_line_that_is_an_object_gets_the_name_of_its_process() -> None:
    line = json_line("frontend", '{"time": "now", "labels": {"é": 1.5}}')
    assert line == '{"process": "frontend", "time": "now", "labels": {"é": 1.5}}'


@pytest.mark.parametrize("text", ["I1122 started", "", "[1]", "7", '{"cut": ', "[" * 100_000, 'a "quoted" \\ word\x00'])
def test_another_line_becomes_the_message_of_an_object(text: str) -> None:
    line = json_line("triton", text)
    fields = json.loads(line)
    assert TIME.fullmatch(fields.pop("time"))
    assert fields == {"process": "triton", "level": "INFO", "message": text}
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("E1126 01:25:23.1 1 x.cc:1] no socket", "ERROR", "E1126 01:25:23.1 1 x.cc:1] no socket"),
        ("W1126 01:25:23.1 1 x.cc:1] slow", "WARNING", "W1126 01:25:23.1 1 x.cc:1] slow"),
        ("2026-11-28T15:47:12.123Z ERROR engine: broken", "ERROR", "engine: broken"),
        ("WARNING old: stage", "WARNING", "old: stage"),
    ],
)
def test_the_object_of_another_line_has_its_level(text: str, level: str, message: str) -> None:
    fields = json.loads(json_line("triton", text))
    assert (fields["level"], fields["message"]) == (level, message)
    assert TIME.fullmatch(fields["time"]) and ("15:47:12.123" in fields["time"]) is ("15:47:12.123" in text)


def test_a_line_has_one_time_its_own_if_it_has_one() -> None:
    timed = "2026-11-28T15:47:12.123Z INFO x: y"
    assert text_line("frontend", timed) == f"[frontend] {timed}"
    assert re.fullmatch(rf"\[triton\] {TIME.pattern} ggml: y", text_line("triton", "ggml: y"))
