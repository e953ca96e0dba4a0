"""The `serve` command: it prints a curl line that works, restarts Triton, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from build_engines import artifact
from build_engines.__main__ import main
from frontend.launcher.guard import MARK, marked_pids
from tests.another_machine import BLOCKED, CLOSED
from tests.integration.api import COMPLETIONS, Api
from tests.integration.replicas import streaming, until
from tests.integration.stack import PACED_MODEL
from tests.integration.test_conch import Terminal
from tests.launching import FREE_PORTS, Command, free_port, running, untimed
from tests.processes import command_line, is_running, is_stopped
from tests.waiting import DEADLINE_S, wait_until

NUM_STAGES = 3


def serving(repository: Path, folder: Path, *arguments: str, **environment: str) -> AbstractContextManager[Command]:
    """Run `serve` on free ports."""
    words = ["serve", f"--repository={repository}", f"--home={folder}", *FREE_PORTS, *arguments]
    return running(folder, *words, env=os.environ | environment)


def printed_curl(serve: Command) -> list[str]:
    """Wait for the curl line and return its words."""
    serve.wait_for("curl ")
    found = wait_until(lambda: re.findall(r"^\s*(curl .*)\n", serve.log, re.MULTILINE), "its line is whole")
    return shlex.split(found[0])


def mark_of(launcher_pid: int) -> str:
    """Return the mark in the environment of every process that a launcher started."""
    for child in psutil.Process(launcher_pid).children():
        for entry in Path(f"/proc/{child.pid}/environ").read_text().split("\0"):
            if entry.startswith(f"{MARK}="):
                return entry.partition("=")[2]
    raise AssertionError("the launcher has no marked child")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_serve_prints_a_curl_line_that_works_and_a_signal_leaves_nothing(paced_repository, tmp_path, number):
    with serving(paced_repository, tmp_path) as serve:
        curl = printed_curl(serve)
        body, content_type = curl[curl.index("-d") + 1], curl[curl.index("-H") + 1]
        answer = Api(curl[1]).post("", body.encode(), dict([content_type.split(": ")]))
        assert answer.text

        mark = mark_of(serve.process.pid)
        assert len(marked_pids(mark)) >= NUM_STAGES + 2  # Triton and the frontend
        serve.process.send_signal(number)
        assert serve.status() == (0 if number == signal.SIGINT else -number)
        wait_until(lambda: not marked_pids(mark), "every process has ended")
        wait_until(lambda: not list(Path("/dev/shm").glob(f"conch_{mark}_*")), "its shared memory is free")


def test_a_file_that_is_cut_under_a_running_server_is_named(
    demo_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact was a link to it: clients got nonsense with 200, then the engine was killed at each load."""
    source = tmp_path / "mine.gguf"
    shutil.copyfile(demo_artifact / "model.gguf", source)
    monkeypatch.setattr(artifact, "MAX_COPIED_BYTES", 0)
    assert main(["build", str(source), "--home", str(tmp_path)]) == 0
    with serving(tmp_path / "repository", tmp_path, "--resume-within-s=1") as serve:
        url = printed_curl(serve)[1].partition("/v1/")[0]
        os.truncate(source, 0)
        answer = Api(url).post(COMPLETIONS, {"model": "mine", "prompt": "Hello", "max_tokens": 1})
        assert (answer.status, answer.body["error"]["code"]) == (500, "engine_failed")
        named = f"mine__engine does not load: {source}: changed since the model was built (0 bytes"
        wait_until(lambda: named in serve.log, "the log names the file")


def answers(url: str) -> bool:
    """Whether the paced model makes a token."""
    try:
        return Api(url).post(COMPLETIONS, {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1}).status == 200
    except OSError:
        return False


def is_tritonserver(pid: int) -> bool:
    """Whether a process is the server, not one of its stages."""
    return command_line(pid).split(b"\0")[0].endswith(b"/tritonserver")


def is_frontend(pid: int) -> bool:
    """Whether a process is the frontend, or the parent of its workers."""
    return b"api" in command_line(pid).split(b"\0")


@pytest.mark.parametrize(("name", "is_it"), [("triton", is_tritonserver), ("frontend", is_frontend)])
def test_a_child_that_hangs_is_started_again(
    paced_repository: Path, tmp_path: Path, name: str, is_it: Callable[[int], bool]
) -> None:
    with serving(paced_repository, tmp_path, f"--{name}-hang-s=2") as serve:
        url = printed_curl(serve)[1].partition("/v1/")[0]
        assert answers(url)
        [child] = [pid for pid in marked_pids(mark_of(serve.process.pid)) if is_it(pid)]
        os.killpg(child, signal.SIGSTOP)
        wait_until(lambda: not is_running(child), "it is gone")
        wait_until(lambda: answers(url), "the model answers again")
        assert f"{name} runs, but answers no health check any more: killed" in serve.log
        serve.process.send_signal(signal.SIGINT)
        assert serve.status() == 0


@pytest.mark.faults
def test_a_worker_that_hangs_is_replaced(paced_repository: Path, tmp_path: Path) -> None:
    with serving(paced_repository, tmp_path, "--workers=2") as serve:
        url = printed_curl(serve)[1].partition("/v1/")[0]
        serve.wait_for(" listens on ", 2)
        worker = int(re.findall(r"process (\d+) listens", serve.log)[0])
        os.kill(worker, signal.SIGSTOP)
        wait_until(lambda: not is_running(worker), "it is gone")
        assert "runs, but does nothing any more: killed" in serve.log
        wait_until(lambda: answers(url), "the model answers")


def test_serve_and_its_guard_leave_no_process_if_both_are_killed(paced_repository: Path, tmp_path: Path) -> None:
    with serving(paced_repository, tmp_path) as serve:
        printed_curl(serve)
        mark = mark_of(serve.process.pid)
        pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
        guards = [pid for pid in pids if mark.encode() in command_line(pid).split(b"\0")]
        for pid in (serve.process.pid, *guards):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not marked_pids(mark), "every process has ended")
        wait_until(lambda: not list(Path("/dev/shm").glob(f"conch_{mark}_*")), "its shared memory is free")


def test_a_terminal_shows_what_breaks_and_the_log_has_each_request(paced_repository: Path, tmp_path: Path) -> None:
    terminal = Terminal("serve", f"--repository={paced_repository}", f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("curl ")
    terminal.wait_for("\r\n\r\n")
    assert "WARNING" not in terminal.text
    url = re.findall(r"Ready:\S* (http\S+)", terminal.text)[0]
    assert answers(url)
    line = " POST /v1/completions "
    path = tmp_path / "servers" / "any" / "serve.log"
    wait_until(lambda: re.search(f"{line}.*status=200", path.read_text()), "its line is in the log")
    assert path.read_text().count(line) == 1
    os.truncate(path, 0)  # as logrotate does with copytruncate
    assert answers(url)
    wait_until(lambda: line in path.read_text(), "its line is in the log")
    assert "\0" not in path.read_text()
    [engine] = [pid for pid in marked_pids(mark_of(terminal.pid)) if b"__engine" in command_line(pid)]
    os.kill(engine, signal.SIGKILL)
    terminal.wait_for("reloading synthetic--paced__engine")
    terminal.wait_for("is well again")
    assert line not in terminal.text
    terminal.kill(signal.SIGINT)
    assert terminal.status() == 0


def processes_of(launcher: int) -> list[int]:
    """Return all processes of a service, its launcher among them."""
    return [launcher, *(child.pid for child in psutil.Process(launcher).children(recursive=True))]


async def test_answers_end_whole_when_every_process_gets_sigterm(paced_repository: Path, tmp_path: Path) -> None:
    """So systemd stops a service without KillMode=mixed: two SIGTERMs reached a frontend, and its streams ended."""
    with serving(paced_repository, tmp_path, "--workers=2") as serve:
        url = (await asyncio.to_thread(printed_curl, serve))[1].partition("/v1/")[0]
        async with streaming(url, 200, 8) as streams:
            await until(lambda: all(stream.text for stream in streams), "the streams have begun")
            for pid in processes_of(serve.process.pid):
                os.kill(pid, signal.SIGTERM)
        assert all(stream.is_whole for stream in streams), streams
        assert await asyncio.to_thread(serve.status) == 0


async def test_the_second_signal_ends_running_answers(paced_repository: Path, tmp_path: Path) -> None:
    with serving(paced_repository, tmp_path, "--workers=2") as serve:
        url = (await asyncio.to_thread(printed_curl, serve))[1].partition("/v1/")[0]
        await until(lambda: serve.log.count(" listens on ") == 2, "both workers listen")
        async with streaming(url, 1900, 8) as streams:
            await until(lambda: all(stream.text for stream in streams), "the streams have begun")
            serve.process.send_signal(signal.SIGTERM)
            await until(lambda: serve.log.count("draining: ") == 2, "both workers drain")
            serve.process.send_signal(signal.SIGTERM)
        assert all(stream.is_cleanly_broken for stream in streams), streams
        assert await asyncio.to_thread(serve.status) == 0


@pytest.mark.faults
def test_it_serves_with_closed_streams_and_ends_though_signals_were_blocked(
    paced_repository: Path, tmp_path: Path
) -> None:
    port = free_port()
    words = [f"--repository={paced_repository}", f"--home={tmp_path}", *FREE_PORTS, f"--port={port}"]
    command = [*BLOCKED, *CLOSED, sys.executable, "-m", "frontend", "serve", *words]
    with running(tmp_path, "serve", args=command) as serve:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}"), "it answers")
        serve.process.send_signal(signal.SIGTERM)
        assert serve.status() == 0


def test_it_outlives_the_reader_of_its_log_and_hears_a_signal_though_it_was_suspended(
    paced_repository: Path, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [f"--repository={paced_repository}", f"--home={tmp_path}", *FREE_PORTS, f"--port={port}"]
    command = [sys.executable, "-m", "frontend", "serve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as serve:
        assert serve.stdout is not None
        while "curl " not in serve.stdout.readline():
            pass
        serve.stdout.close()
        [frontend] = [pid for pid in processes_of(serve.pid) if b"\0api\0" in command_line(pid)]
        os.kill(frontend, signal.SIGKILL)
        wait_until(lambda: not is_running(frontend), "it is gone")
        wait_until(lambda: answers(url), "another frontend answers")
        serve.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(serve.pid), "it is suspended")
        serve.send_signal(signal.SIGINT)
        serve.send_signal(signal.SIGCONT)
        assert serve.wait(DEADLINE_S) == 0


def damaged(paced_repository: Path, folder: Path) -> Path:
    """Return a repository with the engine of the paced model alone, under another name. Its artifact is missing."""
    for source in paced_repository.glob("*/"):
        target = folder / source.name.replace("synthetic--paced", "damaged")
        shutil.copytree(source, target)
        config = re.sub("synthetic(--|/)paced", "damaged", (target / "config.pbtxt").read_text())
        (target / "config.pbtxt").write_text(config.replace("/artifacts/damaged-", "/none/"))
    return folder


def test_a_model_that_does_not_load_is_named_and_the_others_are_served(paced_repository: Path, tmp_path: Path) -> None:
    repository = damaged(paced_repository, tmp_path / "repository")
    with serving(repository, tmp_path) as serve:
        assert serve.status() == 1
    [*_, last] = serve.log.splitlines()
    reason = "damaged is not served: damaged__"
    assert last.startswith(f"error: {reason}") and "FileNotFoundError" in last

    shutil.copytree(paced_repository, repository, dirs_exist_ok=True)
    with serving(repository, tmp_path) as serve:
        assert answers(printed_curl(serve)[1].partition("/v1/")[0])
        assert f"[serve] {reason}" in untimed(serve.log)
        serve.process.send_signal(signal.SIGINT)
        assert serve.status() == 0
