"""`serve` in containers, and while it builds; a small program takes the place of tritonserver."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from frontend.__main__ import main
from tests.another_machine import CONTAINER, WITH_LOOPBACK, needs_root
from tests.frontend.launcher.test_launcher import FORKING_SERVER
from tests.launching import free_port, running
from tests.model_repository.arbiter.repository import parameters_of, write_models
from tests.processes import command_line, is_running

pytestmark = pytest.mark.usefixtures("servers")


@needs_root()
def test_containers_that_share_a_home_serve_on_the_same_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one took process 1 of the first for a process of its own."""
    repository = write_models(tmp_path / "repository", parameters_of("demo"))
    (server := tmp_path / "tritonserver").write_text(f"#!{sys.executable}\n{FORKING_SERVER}\n")
    server.chmod(0o755)
    home, port = tmp_path / "home", free_port()
    words = [f"--repository={repository}", f"--tritonserver={server}", f"--home={home}", f"--port={port}"]
    command = [*CONTAINER, *WITH_LOOPBACK, sys.executable, "-m", "frontend", "serve", *words]
    with running(tmp_path, "first", args=command) as first:
        first.wait_for(" started")
        with running(tmp_path, "second", args=command) as second:
            second.wait_for(" started")
            main(["ps", f"--home={home}"])
            lines = capsys.readouterr().out.splitlines()
            assert [line.split()[-1] for line in lines] == [f"{home}/servers/{port}", f"{home}/servers/{port}-2"]
            assert all(line.startswith("another container ") for line in lines)
            assert main(["stop", f"--home={home}"]) == 1, "their process ids are not ours"


def builds_of(pid: int) -> list[int]:
    """Return the processes of `build` of a `serve`."""
    return [child.pid for child in psutil.Process(pid).children() if b"build_engines" in command_line(child.pid)]


def test_a_signal_during_the_build_ends_the_build_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # it never answers
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        words = ["serve", "owner/name", f"--home={tmp_path / 'home'}", "--port=0"]
        with running(tmp_path, *words, env=environment) as serve, hub.accept()[0]:
            [build] = builds_of(serve.process.pid)
            serve.process.send_signal(signal.SIGTERM)
            assert serve.status() == 0
            assert not is_running(build)
            assert "Traceback" not in serve.log


def test_with_json_the_lines_of_the_build_and_errors_are_objects(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frontend", "serve", str(tmp_path), f"--home={tmp_path}", "--log-format=json"]
    done = subprocess.run([*command, "--port=0"], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1 and done.stdout == ""
    [line] = map(json.loads, done.stderr.splitlines())
    assert (line["process"], line["level"]) == ("build", "ERROR") and str(tmp_path) in line["message"]
