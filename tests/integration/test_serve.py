"""The command line that `make serve` ends in: it says how to ask, and stops without leaving anything behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from frontend.launcher.guard import MARK, marked_pids
from tests.integration.stack import PACED_MODEL
from tests.processes import command_line, is_running
from tests.waiting import wait_until

STOP_S = 10.0


@contextmanager
def serving(repository: Path, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `serve` on free ports; its log goes to a file in the folder."""
    ports = [f"--{name}=0" for name in ("port", "triton-grpc-port", "triton-metrics-port")]
    command = [sys.executable, "-m", "frontend", "serve", f"--repository={repository}", f"--state-dir={folder}", *ports]
    command += arguments
    with (
        (folder / "serve.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def printed_curl(stdout: IO[str]) -> list[str]:
    """Wait for the curl line and return its words."""
    for line in stdout:
        if line.strip().startswith("curl "):
            return shlex.split(line)
    raise AssertionError("it ended without a curl line")


def mark_of(launcher_pid: int) -> str:
    """Return the mark that everything a launcher started carries."""
    for child in psutil.Process(launcher_pid).children():
        for entry in Path(f"/proc/{child.pid}/environ").read_text().split("\0"):
            if entry.startswith(f"{MARK}="):
                return entry.partition("=")[2]
    raise AssertionError("the launcher has no marked child")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_serve_prints_a_curl_line_that_works_and_a_signal_leaves_nothing(repository, tmp_path, number):
    with serving(repository, tmp_path) as process:
        assert process.stdout is not None
        curl = printed_curl(process.stdout)
        body, content_type = curl[curl.index("-d") + 1], curl[curl.index("-H") + 1]
        request = urllib.request.Request(curl[1], body.encode(), dict([content_type.split(": ")]))
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["choices"][0]["message"]["content"]

        mark = mark_of(process.pid)
        num_stages_and_servers = 3 * 2 + 2  # of the two models; Triton and the frontend
        assert len(marked_pids(mark)) >= num_stages_and_servers
        started_at = time.monotonic()
        process.send_signal(number)
        assert process.wait(STOP_S) == (0 if number == signal.SIGINT else -number)
        wait_until(lambda: not marked_pids(mark), "every process has ended")
        assert time.monotonic() - started_at < STOP_S
        wait_until(lambda: not list(Path("/dev/shm").glob(f"conch_{mark}_*")), "its shared memory is free")


def answers(url: str) -> bool:
    """Whether the paced model makes a token."""
    body = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def is_tritonserver(pid: int) -> bool:
    """Whether a process is the server, not one of its stages."""
    return command_line(pid).split(b"\0")[0].endswith(b"/tritonserver")


def test_a_tritonserver_that_hangs_is_started_again(paced_repository: Path, tmp_path: Path) -> None:
    with serving(paced_repository, tmp_path, "--triton-hang-s=2", "--stats-deadline-s=0.5") as process:
        assert process.stdout is not None
        url = printed_curl(process.stdout)[1].partition("/v1/")[0]
        assert answers(url)
        [triton] = [pid for pid in marked_pids(mark_of(process.pid)) if is_tritonserver(pid)]
        os.killpg(triton, signal.SIGSTOP)
        wait_until(lambda: not is_running(triton), "it is gone")
        wait_until(lambda: answers(url), "the model answers again")
        assert "triton runs, but answers no probe any more; it is killed" in (tmp_path / "serve.log").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0
