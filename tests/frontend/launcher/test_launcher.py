"""`python -m frontend serve` with small programs in the place of tritonserver; all processes are real."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from frontend.launcher.errors import ChildEnded
from frontend.launcher.launcher import Interrupted, Launcher, LauncherSettings
from frontend.settings import Settings, SettingsError
from tests.processes import is_running
from tests.waiting import DEADLINE_S, wait_until

# Stands in for a server whose children are hard to get rid of: one is detached, and both ignore SIGTERM.
FORKING_SERVER = """
import os, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
for is_detached in (False, True):
    child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, start_new_session=is_detached)
    child.stdout.readline()
    print("child", child.pid, flush=True)
print("child", os.getpid(), "started", flush=True)
time.sleep(600)
"""
DYING_SERVER = "print('loading the model'); print('no space left on the moon'); raise SystemExit(3)"
DEAF_SERVER = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(600)"
)

# Says how long the key is that it has read, as a Triton writes its log lines.
SERVER_WITH_OPTIONS = """
import sys, time
print("a word of the loader's", flush=True)
key = next(word.rpartition("=")[2] for word in sys.argv if "restricted-protocol" in word)
print("W1122 19:48:14.2 1 x.cc:1] has read", len(key), flush=True)
time.sleep(600)
"""


class Serve:
    """A running `serve` and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None or text in self.log, self.log
            return text in self.log

        wait_until(is_there, f"{text!r} in the log")

    def ended(self) -> tuple[int, str]:
        """Return its exit status and its log, once it has ended."""
        return self.process.wait(DEADLINE_S), self.log

    def child_pids(self) -> list[int]:
        """Return the processes that the forking server named."""
        return [int(pid) for pid in re.findall(r"\bchild (\d+)", self.log)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that looks as if something could be served."""
    (tmp_path / "repository" / "demo").mkdir(parents=True)
    (tmp_path / "repository" / "demo" / "config.pbtxt").touch()
    return tmp_path / "repository"


@pytest.fixture
def server(tmp_path: Path) -> Callable[[str], Path]:
    """Return a program in the place of tritonserver."""

    def write(source: str) -> Path:
        path = tmp_path / "tritonserver"
        path.write_text(f"#!{sys.executable}\n{source}\n")
        path.chmod(0o755)
        return path

    return write


def flags(repository: Path, tritonserver: Path) -> list[str]:
    ports = [f"--{name}=0" for name in ("port", "triton-grpc-port", "triton-metrics-port")]
    return [f"--repository={repository}", f"--tritonserver={tritonserver}", "--stop-timeout-s=0.5", *ports]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Serve]:
    """Run `serve` with a state directory in the folder."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "frontend", "serve", f"--state-dir={folder / 'state'}", *arguments]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            yield Serve(process, log)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_process_even_detached_ones_that_ignore_sigterm(repository, server, tmp_path, number):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER))) as serve:
        serve.wait_for(" started")
        serve.wait_for("[frontend]")
        serve.process.send_signal(number)
        status, _ = serve.ended()
        assert status == 0
        assert len(serve.child_pids()) == 3
        assert not any(map(is_running, serve.child_pids()))


def test_with_json_every_line_is_an_object_that_names_its_process(repository, server, tmp_path):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER)), "--log-format=json") as serve:
        serve.wait_for(" started")
        serve.wait_for('"process": "frontend"')
        serve.process.send_signal(signal.SIGTERM)
        status, log = serve.ended()
    assert status == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"process": "triton", "message": f"child {serve.child_pids()[-1]} started"} in lines
    told = [line for line in lines if line["process"] == "frontend"]
    assert told and all(line["logger"] and line["level"] for line in told)


def test_a_killed_launcher_leaves_nothing_and_the_next_one_can_start(repository, server, tmp_path):
    arguments = flags(repository, server(FORKING_SERVER))
    with serving(tmp_path, *arguments) as serve:
        serve.wait_for(" started")
        serve.process.kill()
        with serving(tmp_path, *arguments) as next_serve:
            next_serve.wait_for(" started")
            assert len(serve.child_pids()) == 3
            assert not any(map(is_running, serve.child_pids()))
            next_serve.process.send_signal(signal.SIGINT)
            assert next_serve.ended()[0] == 0


def test_children_end_with_their_launcher_also_when_its_guard_is_killed_too(repository, server, tmp_path):
    with serving(
        tmp_path, *flags(repository, server("import time; print('started', flush=True); time.sleep(600)"))
    ) as serve:
        serve.wait_for("[triton] started")
        serve.wait_for("[frontend]")
        children = psutil.Process(serve.process.pid).children()
        assert len(children) == 3  # the guard, Triton, the frontend
        for process in children:
            if "guard.py" in " ".join(process.cmdline()):
                process.kill()
        serve.process.kill()
        wait_until(lambda: not any(is_running(child.pid) for child in children), "everything has ended")


def test_a_triton_that_dies_at_start_is_reported_with_its_last_lines(repository, server, tmp_path):
    with serving(tmp_path, *flags(repository, server(DYING_SERVER))) as serve:
        status, log = serve.ended()
    assert status == 1
    assert "[triton] loading the model" in log
    assert "error: triton ended with status 3; its last lines:\nloading the model\nno space left on the moon" in log


def test_a_model_that_does_not_load_is_the_reason_and_nothing_else(repository, server, tmp_path):
    line = "ERROR model_repository.triton_shell: demo__engine does not load: built for 8 GPUs: build it again"
    source = f"print({line!r}); [print('| a table |') for _ in range(99)]; raise SystemExit(1)"
    with serving(tmp_path, *flags(repository, server(source))) as serve:
        status, log = serve.ended()
    assert status == 1
    expected = (
        "triton ended with status 1: a model cannot be served\ndemo__engine does not load: built for 8 GPUs: build"
    )
    assert f"error: {expected} it again\n" in log


def test_a_triton_that_is_killed_later_is_reported(repository, server, tmp_path):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER))) as serve:
        serve.wait_for(" started")
        os.kill(serve.child_pids()[-1], signal.SIGKILL)
        status, log = serve.ended()
    assert status == 1
    assert "error: triton was killed by SIGKILL; its last lines:" in log
    assert not any(map(is_running, serve.child_pids()))


def test_a_child_that_ignores_sigterm_is_killed(repository, server, tmp_path):
    with serving(tmp_path, *flags(repository, server(DEAF_SERVER))) as serve:
        serve.wait_for("started")
        serve.process.send_signal(signal.SIGTERM)
        assert serve.ended()[0] == 0


def test_models_that_never_answer_are_reported(repository, server, tmp_path):
    arguments = [*flags(repository, server(FORKING_SERVER)), "--ready-timeout-s=0.2"]
    with serving(tmp_path, *arguments) as serve:
        status, log = serve.ended()
    assert status == 1
    assert "error: not ready after 0.2 s (--ready-timeout-s): GET /health/ready: " in log
    assert not any(map(is_running, serve.child_pids()))


def test_a_second_launcher_names_the_first(repository, server, tmp_path):
    arguments = flags(repository, server(FORKING_SERVER))
    with serving(tmp_path, *arguments) as first:
        first.wait_for(" started")
        with serving(tmp_path, *arguments) as second:
            status, log = second.ended()
        assert status == 1
        expected = rf"error: process {first.process.pid} already serves {tmp_path}/state at http://127.0.0.1:\d+: .*\n"
        assert re.fullmatch(expected, log)
        assert first.process.poll() is None


@pytest.mark.parametrize("flag", ["--port", "--triton-grpc-port", "--triton-http-port", "--triton-metrics-port"])
def test_a_port_in_use_is_named_with_the_flag_that_changes_it(repository, server, tmp_path, flag):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        arguments = [*flags(repository, server(FORKING_SERVER)), f"{flag}={port}"]
        with serving(tmp_path, *arguments) as serve:
            status, log = serve.ended()
    assert status == 1
    assert (
        log == f"error: cannot listen on 127.0.0.1 port {port}: Address already in use; {flag} chooses another port\n"
    )


@pytest.mark.parametrize(
    ("limit", "state_dir", "message"),
    [
        ("-n 64", "state", "ulimit -n (open files) is 64: Triton needs at least 256, "),
        ("-v 1500000", "state", "ulimit -v (KiB of addresses) is 1500000: Triton needs at least 3145728, "),
        ("-f 0", "state", "[Errno 27] File too large: "),  # as a full disk does, nothing can be written
        ("-c 0", "repository/demo/config.pbtxt/state", "[Errno 20] Not a directory: "),
    ],
)
def test_limits_and_a_state_directory_that_cannot_be_used_are_one_line(
    repository, server, tmp_path, limit, state_dir, message
):
    words = [*flags(repository, server(FORKING_SERVER)), f"--state-dir={tmp_path / state_dir}"]
    command = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", sys.executable, "-m", "frontend", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: {message}")
    assert "ulimit" in message or str(tmp_path / state_dir) in done.stderr


@pytest.mark.parametrize(("name", "problem"), [("missing", "no such folder"), ("empty", "no model in it")])
def test_a_repository_with_nothing_to_serve_is_refused(server, tmp_path, name, problem):
    (tmp_path / "empty").mkdir()
    with serving(tmp_path, *flags(tmp_path / name, server(FORKING_SERVER))) as serve:
        status, log = serve.ended()
    assert status == 1
    assert log.startswith(f"error: --repository={tmp_path / name}: {problem}; ")
    assert log.count("\n") == 1


def test_a_tritonserver_that_is_no_program_is_refused(repository, tmp_path):
    with serving(tmp_path, *flags(repository, tmp_path)) as serve:
        status, log = serve.ended()
    assert status == 1
    assert log == f"error: --tritonserver={tmp_path}: expected a program that can be run\n"


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--port=many", "argument --port: invalid int value: 'many'"),
        ("--port=70000", "port=70000: must be"),
        ("--triton-grpc-port=-1", "--triton-grpc-port=-1: must be"),
        ("--ready-timeout-s=nan", "--ready-timeout-s=nan: must be"),
        ("--max-body-bytes=0", "max_body_bytes=0: must be"),
        ("--colour=red", "unrecognized arguments: --colour=red"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(repository, tmp_path, argument, problem):
    with serving(tmp_path, f"--repository={repository}", argument) as serve:
        status, log = serve.ended()
    assert status == 2
    assert log.startswith(f"error: {problem}")
    assert log.count("\n") == 1


def test_its_triton_has_a_certificate_or_no_tls(repository, tmp_path):
    frontend = Settings(triton_tls_ca="ca.pem")
    with pytest.raises(SettingsError, match=r"^triton_tls_ca='ca.pem': .* needs triton_tls_cert and triton_tls_key"):
        LauncherSettings(repository=repository, state_dir=tmp_path, environment={}, frontend=frontend)


def test_tritons_http_goes_without_tls(repository, tmp_path):
    frontend = Settings(triton_tls_ca="a", triton_tls_cert="c", triton_tls_key="k")
    with pytest.raises(SettingsError, match=r"^--triton-http-port=0: Triton's HTTP knows no TLS"):
        LauncherSettings(
            repository=repository, state_dir=tmp_path, environment={}, frontend=frontend, triton_http_port=0
        )


def test_a_port_can_be_used_once_only(repository, tmp_path):
    with pytest.raises(SettingsError, match="each port can be used once only"):
        LauncherSettings(repository=repository, state_dir=tmp_path, environment={}, triton_grpc_port=8000)


@pytest.fixture
def deaf_settings(repository: Path, server: Callable[[str], Path], tmp_path: Path) -> LauncherSettings:
    """What a launcher in this process is told, with a server that ignores SIGTERM."""
    return LauncherSettings(
        repository=repository,
        state_dir=tmp_path / "state",
        environment=os.environ,
        frontend=Settings(port=0),
        triton_grpc_port=0,
        triton_metrics_port=0,
        tritonserver=server(DEAF_SERVER),
        stop_timeout_s=0.1,
    )


@pytest.mark.parametrize("wait", [Launcher.wait_until_ready, Launcher.watch])
def test_a_signal_before_the_children_have_started_ends_the_first_wait(deaf_settings, wait):
    # A handler that raised here could leave a child that nobody watches, and stopping it would never end.
    with Launcher(deaf_settings, lambda line: None) as launcher:
        launcher.interrupt()
        launcher.start()
        with pytest.raises(Interrupted):
            wait(launcher)
    assert not is_running(launcher.triton.pid)
    assert not is_running(launcher.frontend.pid)


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_signal_at_any_moment_of_the_start_ends_everything(repository, server, tmp_path, delay_s):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER))) as serve:
        wait_until((tmp_path / "state").exists, "it takes its state directory")
        time.sleep(delay_s)
        serve.process.send_signal(signal.SIGTERM)
        assert serve.ended()[0] == 0
        assert not any(map(is_running, serve.child_pids()))


def test_a_child_can_be_killed_and_started_again(deaf_settings):
    lines: list[str] = []
    with Launcher(deaf_settings, lines.append) as launcher:
        for num_starts in (1, 2):
            launcher.triton.start()
            wait_until(lambda: lines.count("[triton] started") == num_starts, "it started")  # noqa: B023
            pid = launcher.triton.pid
            launcher.triton.kill()
            assert not launcher.triton.is_running
            assert launcher.triton.how_it_ended() == "triton was killed by SIGKILL"
            assert launcher.triton.last_lines == ["started"]
            assert not is_running(pid)


def test_the_frontend_is_told_a_password_but_not_in_its_command_line(deaf_settings):
    url = "redis://:password@127.0.0.1:1/0"
    settings = replace(deaf_settings, frontend=Settings(port=0, redis_url=url))
    with Launcher(settings, lambda line: None) as launcher:
        launcher.frontend.start()
        process = Path(f"/proc/{launcher.frontend.pid}")
        assert b"password" not in (process / "cmdline").read_bytes()
        assert f"CONCH_REDIS_URL={url}".encode() in (process / "environ").read_bytes().split(b"\0")


def test_tritons_key_is_in_nobodys_sight(deaf_settings, server):
    # Every user of the machine sees command lines, and Triton takes its key on no other way.
    settings = replace(deaf_settings, tritonserver=server(SERVER_WITH_OPTIONS))
    lines: list[str] = []
    with Launcher(settings, lines.append) as launcher:
        key = launcher.frontend_settings.triton_key
        launcher.frontend.start()
        for num_starts in (1, 2):
            launcher.triton.start()
            wait_until(lambda: sum("has read" in line for line in lines) == num_starts, "it started")  # noqa: B023
            for child in (launcher.triton, launcher.frontend):
                assert key.encode() not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
            assert b"conch-key=" + b"*" * len(key) in Path(f"/proc/{launcher.triton.pid}/cmdline").read_bytes()
            launcher.triton.kill()
        assert lines.count(f"[triton] W1122 19:48:14.2 1 x.cc:1] has read {len(key)}") == 2
        assert f"CONCH_TRITON_KEY={key}".encode() in Path(f"/proc/{launcher.frontend.pid}/environ").read_bytes()
    assert key not in "".join(lines)
    with Launcher(settings, lines.append) as launcher:
        assert launcher.frontend_settings.triton_key != key


def test_a_key_that_was_given_is_tritons(deaf_settings):
    settings = replace(deaf_settings, frontend=Settings(port=0, triton_key="x" * 32))
    with Launcher(settings, lambda line: None) as launcher:
        assert any(word.endswith("conch-key=" + "x" * 32) for word in launcher.triton.command)


@pytest.mark.parametrize("name", ["triton", "frontend"])
def test_a_child_that_dies_later_is_started_again_as_often_as_is_allowed(deaf_settings, name):
    lines: list[str] = []
    settings = replace(deaf_settings, max_restarts=1)
    with Launcher(settings, lines.append) as launcher, ThreadPoolExecutor() as pool:
        launcher.start()
        watching = pool.submit(launcher.watch)
        dying, other = launcher.triton, launcher.frontend
        if name == "frontend":
            dying, other = other, dying
        dead, unharmed = set[int](), other.pid
        for _ in range(2):
            wait_until(lambda: dying.is_running and dying.pid not in dead, "it started")
            dead.add(dying.pid)
            os.kill(dying.pid, signal.SIGKILL)
        with pytest.raises(ChildEnded, match=f"{name} was killed by SIGKILL"):
            watching.result(DEADLINE_S)
        assert other.is_running and other.pid == unharmed
    assert f"[serve] {name} was killed by SIGKILL; it is started again in 1 s" in lines
    assert any("it was started again 1 times in 600 s already (--max-restarts)" in line for line in lines)
