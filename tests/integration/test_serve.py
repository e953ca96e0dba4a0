"""The `serve` command: it prints a curl line that works, restarts Triton, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from build_engines import artifact
from build_engines.__main__ import main
from frontend.launcher.guard import MARK, marked_pids
from tests.integration.api import COMPLETIONS, Api
from tests.integration.stack import PACED_MODEL
from tests.integration.test_conch import Terminal
from tests.launching import FREE_PORTS, Command, running
from tests.processes import command_line, is_running
from tests.waiting import wait_until

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
    with serving(tmp_path / "repository", tmp_path) as serve:
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


def test_a_tritonserver_that_hangs_is_started_again(paced_repository: Path, tmp_path: Path) -> None:
    with serving(paced_repository, tmp_path, "--triton-hang-s=2") as serve:
        url = printed_curl(serve)[1].partition("/v1/")[0]
        assert answers(url)
        [triton] = [pid for pid in marked_pids(mark_of(serve.process.pid)) if is_tritonserver(pid)]
        os.killpg(triton, signal.SIGSTOP)
        wait_until(lambda: not is_running(triton), "it is gone")
        wait_until(lambda: answers(url), "the model answers again")
        assert "triton runs, but answers no health check any more: killed" in serve.log
        serve.process.send_signal(signal.SIGINT)
        assert serve.status() == 0


def test_a_terminal_shows_what_breaks_and_the_log_has_each_request(paced_repository: Path, tmp_path: Path) -> None:
    terminal = Terminal("serve", f"--repository={paced_repository}", f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("curl ")
    terminal.wait_for("\r\n\r\n")
    assert "WARNING" not in terminal.text
    url = re.findall(r"Ready:\S* (http\S+)", terminal.text)[0]
    assert answers(url)
    line = " POST /v1/completions "
    path = tmp_path / "servers" / f"pid-{terminal.pid}" / "serve.log"
    wait_until(lambda: re.search(f"{line}.*status=200", path.read_text()), "its line is in the log")
    assert path.read_text().count(line) == 1
    [engine] = [pid for pid in marked_pids(mark_of(terminal.pid)) if b"__engine" in command_line(pid)]
    os.kill(engine, signal.SIGKILL)
    terminal.wait_for("reloading synthetic--paced__engine")
    terminal.wait_for("is well again")
    assert line not in terminal.text
    terminal.kill(signal.SIGINT)
    assert terminal.status() == 0


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
        assert f"[serve] {reason}" in serve.log
        serve.process.send_signal(signal.SIGINT)
        assert serve.status() == 0
