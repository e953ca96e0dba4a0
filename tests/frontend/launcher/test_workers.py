"""Several real processes on one port."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontend.__main__ import main
from frontend.caller import KeyRole
from frontend.launcher.workers import MAX_WORKERS_BY_CORES, num_workers, run
from frontend.settings import Settings
from frontend.supervision import BEGIN_DRAIN, RELOAD_KEYS
from frontend.telemetry.metrics import SHARED_FOLDER
from tests.another_machine import needs_root, small_disk
from tests.frontend.gateway.key_files import KeyFile
from tests.launching import Command, free_port, running
from tests.processes import command_line, is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

DRAINS = "draining: 0 requests"


def workers_of(frontend: Command) -> list[int]:
    """Return the process ids of the workers, whether they listen or not. The admission process is the first."""
    pid = frontend.process.pid
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for each in children if b"spawn_main" in command_line(each)][1:]


@contextmanager
def two_workers(folder: Path, *arguments: str, constants: Sequence[str] = ()) -> Iterator[tuple[Command, list[int]]]:
    """Run a frontend of two workers; yield it and their process ids once both listen."""
    words = ["api", "--triton=127.0.0.1:1", "--port=0", "--workers=2", *arguments]
    with running(folder, *words, constants=constants) as frontend:
        frontend.wait_for(" listens on http", 2)
        yield frontend, [int(pid) for pid in re.findall(r"process (\d+) listens on", frontend.log)]


def variable_of(worker: int, name: str) -> str:
    """Return an environment variable of a worker."""
    [value] = re.findall(rf"\0{name}=([^\0]+)", Path(f"/proc/{worker}/environ").read_bytes().decode())
    return str(value)


def is_live(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
        return bool(answer.status == 200)


def test_workers_share_a_port_and_nothing_with_other_users_and_end_at_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary folder may have a path that is too long for a socket."""
    (tmp_path / ("long" * 30)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 30)))
    with two_workers(tmp_path) as (frontend, workers):
        assert len(set(re.findall(r"listens on (\S+)", frontend.log))) == 1
        assert all(is_live(frontend.url) for _ in range(20))
        limits, metrics = (Path(variable_of(workers[0], name)) for name in ("CONCH_LIMITS_SOCKET", SHARED_FOLDER))
        assert stat.S_IMODE(limits.stat().st_mode) == 0o600
        assert stat.S_IMODE(metrics.parent.stat().st_mode) == 0o700
        for folder in (limits.parent, metrics):  # logind cleans /dev/shm, and systemd-tmpfiles what it can lock
            cleaner = ["flock", "--exclusive", "--nonblock", str(folder), "true"]
            assert not folder.is_relative_to("/dev/shm") and subprocess.run(cleaner, check=False).returncode == 1
        frontend.process.send_signal(signal.SIGINT)
        assert frontend.status() == 0
        assert not any(map(is_running, workers))


def test_a_killed_worker_is_replaced_also_during_a_drain_and_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    """Both need no files of metrics: without them requests got 500, and no worker could start."""
    with two_workers(tmp_path) as (frontend, workers):
        shutil.rmtree(variable_of(workers[0], SHARED_FOLDER))
        for path in ("health/live", "version", "metrics") * 7:  # each is counted under a name of its own
            urllib.request.urlopen(f"{frontend.url}/{path}", timeout=10).close()
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(workers_of(frontend)) - {workers[0]}) == 2, "another one starts")
        frontend.process.send_signal(BEGIN_DRAIN)
        frontend.wait_for(" listens on http", 3)
        frontend.wait_for(DRAINS, 2)
        assert all(is_live(frontend.url) for _ in range(20))
        assert frontend.process.poll() is None
        workers = workers_of(frontend)
        frontend.process.kill()
        wait_until(lambda: not any(map(is_running, workers)), "no worker is left")


def test_workers_that_do_not_come_up_end_everything(tmp_path: Path) -> None:
    with running(tmp_path, "api", "--triton=127.0.0.1:1", "--port=0", "--workers=2") as frontend:
        first = wait_until(lambda: workers_of(frontend), "a worker starts")[0]
        os.kill(first, signal.SIGKILL)
        assert frontend.status() == 1
        assert f"worker {first} ended with code -9" in frontend.log


def test_another_programs_folder_of_metrics_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    with running(tmp_path, "api", "--triton=127.0.0.1:1", "--port=0", "--workers=1") as frontend:
        frontend.wait_for(" listens on http")
        assert is_live(frontend.url)
    assert not (tmp_path / "missing").exists()


@needs_root()
def test_a_full_disk_costs_metrics_and_no_worker(tmp_path: Path) -> None:
    """A page of a file that has no room on the disk would kill the worker with SIGBUS."""
    source = "from frontend.telemetry.metrics import Metrics; from frontend.telemetry.definitions import *\n"
    source += (
        "m = Metrics(); [m.series(each, *[x] * len(each.labels)) for x in map(str, range(30)) for each in METRICS]\n"
    )
    source += "m.series(IN_FLIGHT, '29').inc(); m.flush(); print([each._exported for each in m._series.values()])"
    for size_bytes, is_counted in ((1 << 16, False), (1 << 20, False), (1 << 24, True)):  # 1 << 20: no file can grow
        with small_disk(tmp_path / str(size_bytes), size_bytes) as disk:
            environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(disk / "metrics")}
            command = [sys.executable, "-c", source]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            assert ("_Nowhere" not in done.stdout) is is_counted
            assert ("No space left on device: '" in done.stderr) is not is_counted


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
    file.add("admin", role=KeyRole.ADMIN)
    return file


def test_keys_are_reloaded_in_every_worker_and_a_drain_of_one_is_a_drain_of_all(
    tmp_path: Path, key_file: KeyFile
) -> None:
    admin_port = free_port()
    admin_url, admin = f"http://127.0.0.1:{admin_port}/admin", key_file.texts["admin"]
    options = [f"--key-file={key_file.path}", f"--admin-port={admin_port}"]
    constants = ["frontend.gateway.install:KEY_INTERVAL_S=100000"]
    with two_workers(tmp_path, *options, constants=constants) as (frontend, workers):
        url = frontend.url
        frontend.wait_for("has its operations on", 2)
        key_file.add("second")
        assert status(f"{admin_url}/keys/reload", admin, "POST") == 200
        frontend.wait_for("has 2 keys", 2)
        assert {status(f"{url}/version", key_file.texts["second"]) for _ in range(20)} == {200}
        key_file.add("third")
        frontend.process.send_signal(RELOAD_KEYS)
        frontend.wait_for("has 3 keys", 2)

        assert status(f"{admin_url}/drain", admin, "POST") == 202
        frontend.wait_for(DRAINS, 2)
        assert {status(f"{url}/version", admin) for _ in range(20)} == {503}
        os.kill(workers[0], signal.SIGKILL)
        frontend.wait_for(f"worker {workers[0]} ended")
        assert workers_of(frontend) == workers[1:], "one that ends during a drain is not replaced"
        frontend.process.send_signal(signal.SIGTERM)
        assert frontend.status() == 0
        assert not any(map(is_running, workers))


def test_workers_share_what_they_store_in_memory_and_go_on_without_it(tmp_path: Path) -> None:
    def stored(method: str, path: str) -> Any:
        """Send a request on a connection of its own, so that the kernel chooses the worker anew."""
        data = b"{}" if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{frontend.url}/v1/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    with two_workers(tmp_path) as (frontend, workers):
        store = Path(variable_of(workers[0], "CONCH_STORE_SOCKET"))
        assert stat.S_IMODE(store.stat().st_mode) == 0o600
        ids = [stored("POST", "conversations")["id"] for _ in range(10)]
        for _ in range(3):
            assert [stored("GET", f"conversations/{each}")["id"] for each in ids] == ids
        os.kill(int(re.findall(r"the admission process (\d+) serves", frontend.log)[0]), signal.SIGKILL)
        frontend.wait_for("limits.sock", 2)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            stored("GET", f"conversations/{ids[0]}")
        identity = stored("POST", "conversations")["id"]
        assert stored("GET", f"conversations/{identity}")["id"] == identity


def test_a_file_of_the_store_that_is_none_stops_the_start_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"text" * 1000)
    assert main(["api", f"--store={path}", "--workers=2"]) == 2
    assert capsys.readouterr().err == f"error: --store {path}: file is not a database\n"


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
