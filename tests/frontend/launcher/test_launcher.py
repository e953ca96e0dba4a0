"""`serve`: first with real processes and a small program in place of tritonserver, then the states of the launcher with
children that are no processes.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontend.__main__ import main
from frontend.launcher.errors import LaunchError
from frontend.launcher.launcher import WINDOW_S, Interrupted, Launcher, LauncherSettings, RestartPlan
from frontend.launcher.state_lock import server_lock
from frontend.settings import Settings, SettingsError
from model_repository.model_parameters import Preset
from model_repository.system.log_time import TIME
from model_repository.system.running_servers import ARTIFACT_FILE, running_servers
from tests.frontend.triton.test_models import Clock
from tests.launching import Command, free_port, running, untimed
from tests.model_repository.arbiter.repository import parameters_of, write_model, write_models
from tests.processes import command_line, is_running
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.usefixtures("servers")

type Launch = Callable[..., tuple[Any, list[str]]]

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


def children_of(serve: Command) -> list[int]:
    """Return the processes that the forking server named."""
    return [int(pid) for pid in re.findall(r"\bchild (\d+)", serve.log)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that looks as if something could be served."""
    return write_models(tmp_path / "repository", parameters_of("demo"))


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


def serving(folder: Path, *arguments: str) -> AbstractContextManager[Command]:
    """Run `serve` with a state directory in the folder."""
    return running(folder, "serve", f"--home={folder / 'state'}", *arguments)


def test_with_json_every_line_is_an_object_that_names_its_process(repository, server, tmp_path):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER)), "--log-format=json") as serve:
        serve.wait_for(" started")
        serve.wait_for('"process": "frontend"')
        serve.process.send_signal(signal.SIGTERM)
        assert serve.status() == 0
    lines = [json.loads(line) for line in serve.log.splitlines()]
    assert ("triton", "INFO", f"child {children_of(serve)[-1]} started") in [
        (line["process"], line["level"], line["message"]) for line in lines
    ]
    assert all(TIME.fullmatch(line["time"]) for line in lines)
    of_frontend = [line for line in lines if line["process"] == "frontend"]
    assert of_frontend and all(line["logger"] and line["level"] for line in of_frontend)
    assert not any(map(is_running, children_of(serve)))


@pytest.mark.parametrize("is_verbose", [False, True])
def test_on_a_terminal_the_log_of_the_children_goes_to_a_file(repository, server, tmp_path, is_verbose):
    words = ["serve", f"--home={tmp_path / 'state'}", *(["--verbose"] if is_verbose else [])]
    words += flags(repository, server("print('started', flush=True); import time; time.sleep(600)"))
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "frontend", *words]
    with subprocess.Popen(command, stdout=its_end, stderr=its_end) as process, open(terminal, "rb", 0) as output:
        os.close(its_end)
        text = ""
        while "started" not in text and "Loading the models: 2 s" not in text:
            text += output.read(4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    log = tmp_path / "state" / "servers" / "any" / "serve.log"
    if is_verbose:
        assert "[triton] started" in untimed(text) and not log.exists()
    else:
        assert text.startswith(f"Starting Triton and the frontend. Their log is in {log}.\r\n")
        assert "[triton]" not in text and "[triton] started\n" in untimed(log.read_text())


def test_a_killed_launcher_leaves_nothing_and_the_next_one_can_start(repository, server, tmp_path):
    arguments = [*flags(repository, server(FORKING_SERVER)), f"--port={free_port()}"]
    with serving(tmp_path, *arguments) as serve:
        serve.wait_for(" started")
        serve.process.kill()
        with serving(tmp_path, *arguments) as next_serve:
            next_serve.wait_for(" started")
            assert len(children_of(serve)) == 3
            assert not any(map(is_running, children_of(serve)))
            next_serve.process.send_signal(signal.SIGINT)
            assert next_serve.status() == 0


def test_a_guard_that_was_killed_is_replaced_and_ends_the_children_of_a_killed_launcher(repository, server, tmp_path):
    def guards() -> list[int]:
        pids = [child.pid for child in psutil.Process(serve.process.pid).children()]
        return [pid for pid in pids if b"guard.py" in command_line(pid)]

    with serving(tmp_path, *flags(repository, server(FORKING_SERVER))) as serve:
        serve.wait_for(" started")
        [killed] = guards()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: set(guards()) - {killed}, "another guard runs")
        serve.process.kill()
        wait_until(lambda: not any(map(is_running, children_of(serve))), "everything has ended")


def test_a_disk_without_space_is_one_line(repository, server, tmp_path):
    words = flags(repository, server(FORKING_SERVER))
    words += [f"--home={tmp_path / 'state'}"]
    command = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", sys.executable, "-m", "frontend", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: [Errno 27] File too large: ")
    assert str(tmp_path / "state") in done.stderr


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_a_signal_at_any_moment_of_the_start_ends_everything(repository, server, tmp_path, delay_s):
    with serving(tmp_path, *flags(repository, server(FORKING_SERVER))) as serve:
        wait_until((tmp_path / "state").exists, "it takes its state directory")
        time.sleep(delay_s)
        serve.process.send_signal(signal.SIGTERM)
        assert serve.status() == 0
        assert not any(map(is_running, children_of(serve)))


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--port=many", "argument --port: many: expected a whole number"),
        ("--triton-grpc-port=-1", "--triton-grpc-port=-1: must be"),
        ("--ready-timeout-s=nan", "--ready-timeout-s=nan: must be"),
        ("--colour=red", "--colour: no such option of serve"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(capsys, argument, problem):
    status = main(["serve", "--repository=r", argument])
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: {problem}")


def test_its_triton_has_a_certificate_or_no_tls(repository, tmp_path):
    frontend = Settings(triton_tls_ca="ca.pem")
    with pytest.raises(SettingsError, match=r"^--triton-tls-ca='ca.pem': .* certificate: --triton-tls-cert and "):
        LauncherSettings(repository=repository, environment={}, frontend=frontend)


def test_tritons_http_goes_without_tls(repository, tmp_path):
    frontend = Settings(triton_tls_ca="a", triton_tls_cert="c", triton_tls_key="k")
    with pytest.raises(SettingsError, match=r"^--triton-http-port=0: Triton's HTTP has no TLS"):
        LauncherSettings(repository=repository, environment={}, frontend=frontend, triton_http_port=0)


def test_a_port_can_be_used_once_only(repository, tmp_path):
    with pytest.raises(SettingsError, match=r"^--port=8000, --triton-grpc-port=8000: each port can be used once only"):
        LauncherSettings(repository=repository, environment={}, triton_grpc_port=8000)


def test_the_pauses_grow_and_end_at_the_limit() -> None:
    plan = RestartPlan(3, Clock())
    assert [plan.next_pause_s() for _ in range(5)] == [1.0, 2.0, 4.0, None, None]
    assert RestartPlan(0, Clock()).next_pause_s() is None


def test_an_old_restart_does_not_count() -> None:
    clock = Clock()
    plan = RestartPlan(1, clock)
    assert [plan.next_pause_s(), plan.next_pause_s()] == [1.0, None]
    clock.now += WINDOW_S
    assert plan.next_pause_s() == 1.0


class FakeChild:
    """A child that is no process."""

    last_lines = ("loading the model", "no space left on the moon")
    last_problem = last_lines[-1]
    has_crashed = False

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, on_end: Any, **options: Any
    ) -> None:
        self.name, self.command, self.environment = name, tuple(command), environment
        self.is_running = False
        self.num_starts = 0
        self.load_failures: dict[str, str] = {}
        self.ended_stages: Callable[[], dict[int, str]] = dict
        self._on_end = on_end

    def start(self) -> None:
        self.is_running = True
        self.num_starts += 1

    def stop(self, grace_s: float = 0.0) -> None:
        if self.is_running:
            self.is_running = False
            self._on_end(self)

    kill = stop

    def how_it_ended(self) -> str:
        return f"{self.name} ended with status 3"


@pytest.fixture
def settings(repository: Path, server: Callable[[str], Path], tmp_path: Path) -> LauncherSettings:
    """Free ports, a program that is never started, no health checks."""
    return LauncherSettings(
        repository=repository,
        environment={"PATH": "/bin"},
        frontend=Settings(port=0),
        triton_grpc_port=0,
        triton_metrics_port=0,
        tritonserver=server(""),
        max_restarts=1,
        triton_hang_s=0,
        frontend_hang_s=0,
    )


@pytest.fixture
def launch(settings: LauncherSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Enter launchers without processes; their home and settings may be changed."""
    lines: list[str] = []
    monkeypatch.setattr("frontend.launcher.launcher.Child", FakeChild)
    monkeypatch.setattr("frontend.launcher.launcher.guarded", lambda lock, grace_s: nullcontext("mark"))
    monkeypatch.setattr("frontend.launcher.launcher._FIRST_PAUSE_S", 0.01)
    with ExitStack() as stack:

        def enter(home: Path = tmp_path / "state", **changes: Any) -> tuple[Any, list[str]]:
            lock = stack.enter_context(server_lock(home, "any", is_shared=False))
            return stack.enter_context(Launcher(replace(settings, **changes), lock, lines.append)), lines

        yield enter


@pytest.mark.parametrize("wait", [Launcher.wait_until_ready, Launcher.watch])
def test_a_signal_before_the_children_have_started_ends_the_first_wait(launch, wait):
    # A handler that raised here could leave a child that nothing watches, and stopping it would never end.
    launcher, _ = launch()
    launcher.interrupt()
    launcher.start()
    with pytest.raises(Interrupted):
        wait(launcher)
    launcher.__exit__()
    assert not launcher.triton.is_running and not launcher.frontend.is_running


def test_a_child_that_ends_at_the_start_is_reported_with_its_last_lines(launch):
    launcher, _ = launch()
    launcher.start()
    launcher.triton.stop()
    with pytest.raises(LaunchError, match=r"^triton ended with status 3: no space left on the moon$") as caught:
        launcher.wait_until_ready()
    assert caught.value.log == ["The last lines of triton:", "loading the model", "no space left on the moon"]


@pytest.mark.parametrize("num_crashes", [1, 2])
def test_a_triton_that_crashes_at_the_start_is_started_once_more(launch, monkeypatch, num_crashes):
    def first_tokens(*arguments: object, **options: object) -> list[str]:
        wait_until(lambda: launcher.triton.num_starts == 2, "a second start")
        if num_crashes == 2:
            launcher.triton.stop()
        return ["demo"]

    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", first_tokens)
    launcher, lines = launch()
    launcher.triton.has_crashed = True
    launcher.start()
    launcher.triton.stop()
    with nullcontext() if num_crashes == 1 else pytest.raises(LaunchError, match=r"^triton ended with status 3: "):
        assert launcher.wait_until_ready() == ["demo"]
    assert sum(line.endswith("triton ended with status 3 while it started; it is started again") for line in lines) == 1


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_stage_that_has_ended_at_the_start_is_not_waited_for_unless_triton_notices_it(
    launch, monkeypatch, is_noticed
):
    """Triton waits without end for a stage that ends before its first message.

    It runs a stage's program for a moment to see whether that fails. On a busy machine this ended the whole server.
    """
    polls, numbers = threading.Semaphore(0), itertools.count()

    def first_tokens(*arguments: object, **options: object) -> list[str]:
        for _ in range(3):
            polls.acquire()
        return ["demo"]

    def ended_stages() -> dict[int, str]:
        polls.release()
        return {7: "a stage of triton was killed by SIGKILL"} if next(numbers) == 0 or not is_noticed else {}

    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", first_tokens)
    monkeypatch.setattr("frontend.launcher.launcher._STAGE_POLL_S", 0.01)
    monkeypatch.setattr("frontend.launcher.launcher._NOTICED_WITHIN_S", 0.001)
    launcher, _ = launch()
    launcher.triton.ended_stages = ended_stages
    launcher.start()
    message = r"^a stage of triton was killed by SIGKILL: no space left on the moon$"
    with nullcontext() if is_noticed else pytest.raises(LaunchError, match=message):
        assert launcher.wait_until_ready() == ["demo"]


@pytest.mark.parametrize("served", [["other"], []])
def test_a_model_that_does_not_load_is_named_and_ends_nothing_unless_it_is_the_only_one(
    launch, monkeypatch, repository, served
):
    for name in served:
        write_model(repository, parameters_of(name))
    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", lambda *arguments, **options: served)
    launcher, _ = launch()
    launcher.start()
    launcher.triton.load_failures = {"demo__engine": "build it again", "demo__tokenizer": "no file"}
    message = "demo is not served: demo__engine does not load: build it again; demo__tokenizer does not load: no file"
    with nullcontext() if served else pytest.raises(LaunchError, match=f"^{message}$"):
        assert launcher.wait_until_ready() == served
    assert launcher.unserved == [message] and "--exit-on-error=false" in launcher.triton.command


def test_a_replica_that_does_not_load_is_named_while_its_model_is_served(launch, monkeypatch, repository, tmp_path):
    write_model(repository, parameters_of("demo", replica=2))
    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", lambda *arguments, **options: ["demo"])
    launcher, _ = launch()
    launcher.start()
    launcher.triton.load_failures = {"demo@2__engine": "GPUs [2, 3]: no such"}
    assert launcher.wait_until_ready() == ["demo"]
    assert launcher.unserved == ["demo, replica 2, is not served: demo@2__engine does not load: GPUs [2, 3]: no such"]
    assert [server.models for server in running_servers(tmp_path / "state")] == [("demo",)]


def test_models_that_have_loaded_must_load_again_after_a_crash(launch, monkeypatch):
    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", lambda *arguments, **options: ["demo"])
    launcher, _ = launch()
    launcher.start()
    launcher.wait_until_ready()
    assert "--exit-on-error=true" in launcher.triton.command


def test_models_that_never_answer_are_reported(launch, monkeypatch):
    def no_token(*arguments: object, **options: object) -> None:
        raise TimeoutError("GET /health/ready: 503")

    monkeypatch.setattr("frontend.launcher.launcher.wait_for_first_tokens", no_token)
    launcher, _ = launch(ready_timeout_s=0.2)
    launcher.start()
    message = r"not ready after 0.2 s \(--ready-timeout-s\): GET /health/ready: 503$"
    with pytest.raises(LaunchError, match=message) as caught:
        launcher.wait_until_ready()
    assert caught.value.log[:2] == ["The last lines of triton:", "loading the model"]


@pytest.mark.parametrize("name", ["triton", "frontend"])
def test_a_child_that_ends_later_is_started_again_as_often_as_is_allowed(launch, name):
    launcher, lines = launch()
    launcher.start()
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(launcher.watch)
        ending, other = launcher.triton, launcher.frontend
        if name == "frontend":
            ending, other = other, ending
        for num_starts in (1, 2):
            wait_until(lambda: ending.num_starts == num_starts, "it started")  # noqa: B023
            ending.stop()
        with pytest.raises(LaunchError, match=f"{name} ended with status 3"):
            watching.result(DEADLINE_S)
    assert other.is_running and other.num_starts == 1
    assert f"[serve] {name} ended with status 3; restart in 0.01 s" in map(untimed, lines)
    assert any("restarted 1 times in 600 s already (--max-restarts)" in line for line in lines)


def test_a_second_launcher_names_the_first(launch, tmp_path):
    first, _ = launch()
    with pytest.raises(LaunchError, match=rf"^process {os.getpid()} already serves at {first.url}: "):
        launch()


@pytest.mark.parametrize("name", ["port", "triton_grpc_port", "triton_http_port", "triton_metrics_port"])
def test_a_port_in_use_is_named_with_the_flag_that_changes_it(launch, name):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        flag = f"--{name.replace('_', '-')}"
        message = f"cannot listen on 127.0.0.1 port {port}: Address already in use; {flag} chooses another port"
        with pytest.raises(LaunchError, match=f"^{message}$"):
            launch(**({"frontend": Settings(port=port)} if name == "port" else {name: port}))


def test_a_running_server_names_its_models_with_presets_and_artifacts(launch, repository, tmp_path):
    write_model(repository, parameters_of("demo", presets={"brief": Preset()}))
    (repository / "demo" / ARTIFACT_FILE).write_text("demo-0123")
    launch(tmp_path)
    [server] = running_servers(tmp_path)
    assert (server.models, server.artifacts) == (("demo", "brief"), ("demo-0123",))


def test_a_home_that_cannot_be_used_is_named(launch, repository):
    home = repository / "demo" / "config.pbtxt"
    with pytest.raises(OSError, match=rf"\[Errno 20\] Not a directory: '{home}/servers/any'"):
        launch(home)


@pytest.mark.parametrize(("name", "problem"), [("missing", "no such folder"), ("empty", "no model in it")])
def test_a_repository_with_nothing_to_serve_is_refused(launch, tmp_path, name, problem):
    (tmp_path / "empty").mkdir()
    with pytest.raises(LaunchError, match=f"^--repository={tmp_path / name}: {problem}; "):
        launch(repository=tmp_path / name)


def test_secrets_of_the_frontend_are_in_its_environment_and_in_no_command_line(launch, tmp_path):
    url = "redis://:password@127.0.0.1:1/0"
    launcher, _ = launch(frontend=Settings(port=0, redis_url=url, key_file="keys.json"))
    key = launcher.frontend_settings.triton_key
    words = " ".join(launcher.frontend.command)
    environment = launcher.frontend.environment
    assert environment["CONCH_REDIS_URL"] == url and "password" not in words
    assert environment["CONCH_TRITON_KEY"] == key and key not in words
    other, _ = launch(tmp_path / "other")
    assert other.frontend_settings.triton_key != key


def test_a_key_that_was_given_is_tritons(launch):
    launcher, _ = launch(frontend=Settings(port=0, triton_key="x" * 32))
    assert any(word.endswith("conch-key=" + "x" * 32) for word in launcher.triton.command)
