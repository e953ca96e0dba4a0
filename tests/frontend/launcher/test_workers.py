"""Several real processes on one port."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from frontend.__main__ import main
from frontend.caller import Role
from frontend.launcher.workers import MAX_WORKERS_BY_CORES, num_workers, run
from frontend.operations.supervisor import BEGIN_DRAIN, RELOAD_KEYS
from frontend.settings import Settings
from tests.frontend.gateway.key_files import KeyFile
from tests.frontend_with import command_with
from tests.launching import free_port
from tests.processes import command_line, is_running

pytestmark = pytest.mark.usefixtures("servers")

DEADLINE_S = 60.0  # for things that take a second: only a hang reaches it


class Frontend:
    """A running `api` with several workers, and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def listening(self) -> list[tuple[int, str]]:
        """Return process id and URL of every worker that has ever listened."""
        return [(int(pid), url) for pid, url in re.findall(r"process (\d+) listens on (\S+)", self.log.read_text())]

    def spawned(self) -> list[int]:
        """Return the process ids of the workers, whether they listen or not. The admission process is the first."""
        children = [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]
        return [pid for pid in children if b"spawn_main" in command_line(pid)][1:]

    def wait_for_workers(self, count: int) -> list[tuple[int, str]]:
        self.wait_until(lambda: len(self.listening()) >= count)
        return self.listening()

    def wait_for_log(self, text: str) -> None:
        self.wait_until(lambda: text in self.log.read_text())

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)


@contextmanager
def running(folder: Path, *arguments: str, constants: Sequence[str] = ()) -> Iterator[Frontend]:
    log = folder / "log"
    command = [*command_with(*constants), "api", "--triton=127.0.0.1:1", "--workers=2", *arguments]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            yield Frontend(process, log)
        finally:
            process.kill()


def is_live(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
        return bool(answer.status == 200)


def test_workers_share_a_port_and_end_at_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        (first, url), (second, same_url) = frontend.wait_for_workers(2)
        assert url == same_url
        assert all(is_live(url) for _ in range(20))
        frontend.process.send_signal(signal.SIGINT)
        assert frontend.process.wait(DEADLINE_S) == 0
        assert not is_running(first) and not is_running(second)


def test_the_temporary_folder_may_have_a_path_that_is_too_long_for_a_socket(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / ("long" * 30)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 30)))
    with running(tmp_path, "--port=0") as frontend:
        frontend.wait_for_workers(2)


def test_what_workers_share_is_their_users_alone(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        frontend.wait_for_workers(2)
        environ = Path(f"/proc/{frontend.spawned()[0]}/environ").read_bytes().decode()
        [limits] = re.findall(r"CONCH_LIMITS_SOCKET=([^\0]+)", environ)
        assert stat.S_IMODE(os.stat(limits).st_mode) == 0o600
        [metrics] = re.findall(r"PROMETHEUS_MULTIPROC_DIR=([^\0]+)", environ)
        assert stat.S_IMODE(os.stat(Path(metrics).parent).st_mode) == 0o700


def test_a_killed_worker_is_replaced_and_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        (first, url), _ = frontend.wait_for_workers(2)
        os.kill(first, signal.SIGKILL)
        workers = frontend.wait_for_workers(3)
        assert all(is_live(url) for _ in range(20))
        assert frontend.process.poll() is None
        frontend.process.kill()
        frontend.wait_until(lambda: not any(is_running(pid) for pid, _ in workers))


def test_workers_that_do_not_come_up_end_everything(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        frontend.wait_until(lambda: bool(frontend.spawned()))
        first = frontend.spawned()[0]
        os.kill(first, signal.SIGKILL)
        assert frontend.process.wait(DEADLINE_S) == 1
        assert f"worker {first} ended with code -9" in frontend.log.read_text()


def test_a_drain_of_one_worker_is_a_drain_of_all_and_a_worker_that_ends_then_is_not_replaced(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        (first, url), (second, _) = frontend.wait_for_workers(2)
        os.kill(first, BEGIN_DRAIN)
        frontend.wait_until(lambda: frontend.log.read_text().count("draining: 0 requests") == 2)
        assert all(is_live(url) for _ in range(20))
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
            frontend.wait_for_log(f"worker {pid} ended")
        assert frontend.spawned() == []
        frontend.process.send_signal(signal.SIGTERM)
        assert frontend.process.wait(DEADLINE_S) == 0


def test_a_worker_that_starts_while_the_others_begin_a_drain_drains_too(tmp_path: Path) -> None:
    with running(tmp_path, "--port=0") as frontend:
        (first, _), _ = frontend.wait_for_workers(2)
        os.kill(first, signal.SIGKILL)
        frontend.wait_until(lambda: len(set(frontend.spawned()) - {first}) == 2)
        frontend.process.send_signal(BEGIN_DRAIN)
        frontend.wait_for_workers(3)
        frontend.wait_until(lambda: frontend.log.read_text().count("draining: 0 requests") == 2)
        assert frontend.process.poll() is None


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("name", ["port", "admin_port"])
def test_a_port_in_use_is_named_and_not_shared(name: str, is_shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=is_shared) as taken:
        port = taken.getsockname()[1]
        assert run(replace(Settings(port=0, workers=2), **{name: port})) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in caplog.text


def status(url: str, key: str, method: str = "GET") -> int:
    """Send a request on a connection of its own, so that the kernel chooses the worker anew."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        return exc.code


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "keys.json")
    file.add("admin", role=Role.ADMIN)
    return file


def test_keys_are_reloaded_in_every_worker(tmp_path: Path, key_file: KeyFile) -> None:
    admin_port = free_port()
    options = ["--port=0", f"--key-file={key_file.path}", f"--admin-port={admin_port}"]
    with running(tmp_path, *options, constants=["frontend.gateway.install:KEY_INTERVAL_S=100000"]) as frontend:
        (_, url), _ = frontend.wait_for_workers(2)
        frontend.wait_until(lambda: frontend.log.read_text().count("has its operations on") == 2)
        key_file.add("second")
        assert status(f"http://127.0.0.1:{admin_port}/admin/keys/reload", key_file.texts["admin"], "POST") == 200
        frontend.wait_until(lambda: frontend.log.read_text().count("has 2 keys") == 2)
        assert {status(f"{url}/version", key_file.texts["second"]) for _ in range(20)} == {200}
        key_file.add("third")
        frontend.process.send_signal(RELOAD_KEYS)
        frontend.wait_until(lambda: frontend.log.read_text().count("has 3 keys") == 2)
        assert frontend.process.poll() is None


def test_a_drain_by_the_admin_route_of_one_worker_is_a_drain_of_all_and_a_signal_ends_them(
    tmp_path: Path, key_file: KeyFile
) -> None:
    admin_port = free_port()
    options = ["--port=0", f"--key-file={key_file.path}", f"--admin-port={admin_port}"]
    with running(tmp_path, *options) as frontend:
        workers = frontend.wait_for_workers(2)
        frontend.wait_until(lambda: frontend.log.read_text().count("has its operations on") == 2)
        assert status(f"http://127.0.0.1:{admin_port}/admin/drain", key_file.texts["admin"], "POST") == 202
        frontend.wait_until(lambda: frontend.log.read_text().count("draining: 0 requests") == 2)
        assert {status(f"{url}/version", key_file.texts["admin"]) for _, url in workers * 10} == {503}
        frontend.process.send_signal(signal.SIGTERM)
        assert frontend.process.wait(DEADLINE_S) == 0
        assert not any(is_running(pid) for pid, _ in workers)


def test_a_bad_key_file_stops_the_start_with_one_line(key_file: KeyFile, capsys: pytest.CaptureFixture[str]) -> None:
    key_file.path.write_text("{")
    assert main(["api", f"--key-file={key_file.path}"]) == 2
    assert capsys.readouterr().err == f"error: {key_file.path}: is not JSON in UTF-8 (line 1, column 2)\n"


@pytest.mark.parametrize(("num_cores", "expected"), [(1, 1), (2, 1), (8, 2), (16, 4), (512, MAX_WORKERS_BY_CORES)])
def test_zero_workers_depend_on_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, expected: int
) -> None:
    monkeypatch.setattr("frontend.launcher.workers.num_cores", lambda: num_cores)
    assert num_workers(Settings()) == expected
    assert num_workers(Settings(workers=3)) == 3
