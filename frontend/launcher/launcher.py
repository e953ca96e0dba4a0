"""Starts tritonserver and the frontend, waits until the models answer, restarts them after a crash, ends both."""

from __future__ import annotations

import math
import queue
import secrets
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

from frontend.launcher.checks import PortChoice, check_llama_build, check_machine, check_repository, free_ports
from frontend.launcher.child import Child, json_line, text_line
from frontend.launcher.errors import LaunchError
from frontend.launcher.guard import MARK, free_shared_memory, guarded, shm_prefix
from frontend.launcher.triton_health import hang_watch, is_silent, is_triton_silent, wait_for_first_tokens
from frontend.launcher.triton_server import (
    ADDRESS,
    DEFAULT_FRONTEND,
    GrpcTls,
    TritonOptions,
    TritonPorts,
    find_triton,
    triton_command,
    triton_folder,
)
from frontend.options import settings_to_arguments, settings_to_environment
from frontend.settings import Settings, SettingsError
from frontend.supervision import END_NOW, SUPERVISED
from model_repository.arbiter.start import Start
from model_repository.contract.arbiter import MODEL_MEMORY_VARIABLE
from model_repository.contract.tensors import KEY_VARIABLE, ensemble_of_stage, ensemble_to_model_id, replica_suffix
from model_repository.errors import LOAD_FAILURE
from model_repository.system.lock_file import write_holder
from model_repository.system.running_servers import ARTIFACT_FILE

EVERY_ADDRESS = ("0.0.0.0", "::")
WINDOW_S = 600.0  # older restarts do not count
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
_STAGE_POLL_S = 0.5
_NOTICED_WITHIN_S = 5.0  # Triton needs two to report a stage that ends while it loads


class RestartPlan:
    """Counts restarts. Pure.

    Args:
        max_restarts: the limit within the window; 0: no restarts.
        clock: monotonic seconds.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._ended_at_s: deque[float] = deque()

    def next_pause_s(self) -> float | None:
        """Note an end; return the seconds until the restart, or None after too many restarts."""
        now = self._clock()
        while self._ended_at_s and now - self._ended_at_s[0] >= WINDOW_S:
            self._ended_at_s.popleft()
        if len(self._ended_at_s) >= self.max_restarts:
            return None
        self._ended_at_s.append(now)
        return float(min(_FIRST_PAUSE_S * 2 ** (len(self._ended_at_s) - 1), _MAX_PAUSE_S))


class Interrupted(Exception):
    """A signal ended the launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """The options of `serve`. A port 0 means any free port.

    Raises:
        SettingsError: at construction.
    """

    repository: Path
    environment: Mapping[str, str]  # the launcher's; the children inherit it
    frontend: Settings = DEFAULT_FRONTEND  # the launcher sets its Triton endpoint
    triton_grpc_port: int | None = None  # None: 8001 if it is free, else any
    triton_metrics_port: int | None = None  # None: 8002 if it is free, else any
    triton_http_port: int | None = None  # None: closed
    tritonserver: Path | None = None  # None: an installed one
    ready_timeout_s: float = 120.0
    stop_timeout_s: float = 5.0  # the frontend's, beyond its drain_timeout_s; then it is killed
    max_restarts: int = 5  # a child's in ten minutes, once ready; then the launcher ends
    memory_bytes: int | None = None  # bound on the memory of all models together; None: that of the machine
    triton_hang_s: float = 30.0  # time without an answer to a health check until Triton is restarted; 0: no limit
    frontend_hang_s: float = 30.0  # the same for the frontend

    def __post_init__(self) -> None:
        if self.frontend.tls_client_ca:
            rule = "serve sends requests to the frontend and has no certificate; run api and triton instead"
            raise SettingsError(f"--tls-client-ca={self.frontend.tls_client_ca!r}: {rule}")
        if self.frontend.triton_tls_ca and not self.frontend.triton_tls_cert:
            rule = "Triton shows the frontend's certificate: --triton-tls-cert and --triton-tls-key are needed"
            raise SettingsError(f"--triton-tls-ca={self.frontend.triton_tls_ca!r}: {rule}")
        if self.frontend.triton_tls_ca and self.triton_http_port is not None:
            rule = "Triton's HTTP has no TLS, leave it out with --triton-tls-ca"
            raise SettingsError(f"--triton-http-port={self.triton_http_port}: {rule}")
        for choice in self.port_choices():
            if not 0 <= choice.port <= 65535:
                raise SettingsError(f"{choice.flag}={choice.port}: must be a whole number from 0 to 65535")
        named = [choice for choice in self.port_choices() if choice.port and choice.is_chosen]
        if len({choice.port for choice in named}) < len(named):
            clash = ", ".join(f"{choice.flag}={choice.port}" for choice in named)
            raise SettingsError(f"{clash}: each port can be used once only")
        if self.max_restarts < 0:
            raise SettingsError(f"--max-restarts={self.max_restarts}: must not be negative")
        for flag, limit_s in (("--triton-hang-s", self.triton_hang_s), ("--frontend-hang-s", self.frontend_hang_s)):
            if not 0 <= limit_s < math.inf:
                raise SettingsError(f"{flag}={limit_s:g}: must be a number of seconds")
        for flag, timeout_s in (("--ready-timeout-s", self.ready_timeout_s), ("--stop-timeout-s", self.stop_timeout_s)):
            if not 0 < timeout_s < math.inf:
                raise SettingsError(f"{flag}={timeout_s:g}: must be a number of seconds above 0")

    def port_choices(self) -> list[PortChoice]:
        """Return every port of the server."""
        frontend = self.frontend
        return [
            PortChoice("--port", frontend.host, frontend.port),
            _triton_port("--triton-grpc-port", self.triton_grpc_port, 8001),
            _triton_port("--triton-metrics-port", self.triton_metrics_port, 8002),
            *(PortChoice("--triton-http-port", ADDRESS, port) for port in (self.triton_http_port,) if port is not None),
            *([PortChoice("--admin-port", frontend.admin_host, frontend.admin_port)] if frontend.admin_port else []),
        ]


def _triton_port(flag: str, port: int | None, usual: int) -> PortChoice:
    return PortChoice(flag, ADDRESS, usual if port is None else port, is_chosen=port is not None)


class Launcher:
    """The two children of `serve`; a context manager that leaves no process behind.

    Entering it makes the checks; no child runs yet. Then `start` starts both children, or a test starts, stops and
    kills `triton` and `frontend` one by one; a restart has the same ports.

    Args:
        lock: of the server's folder, as `server_lock` yields it.
        log: called with each line of the children's logs, from other threads.
        notify: called with each line of the launcher's own, from other threads too; None: `log`.
    """

    triton: Child
    frontend: Child
    triton_ports: TritonPorts
    frontend_settings: Settings

    def __init__(
        self,
        settings: LauncherSettings,
        lock: TextIO,
        log: Callable[[str], None],
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._lock = lock
        self._log = log
        self._notify = notify or log
        self._named = json_line if settings.frontend.log_format == "json" else text_line
        self._events: queue.SimpleQueue[Child | list[str] | TimeoutError | Interrupted] = queue.SimpleQueue()
        self._cleanup = ExitStack()
        self._is_stopping = False
        self.on_demand: list[str] = []  # ids of models that are loaded at their first request
        self.on_devices: Sequence[str] = ()  # once ready: a text for each model with layers on devices
        self.unserved: list[str] = []  # once ready: a sentence for each model that could not be loaded

    def __enter__(self) -> Self:
        """Check everything and prepare the children.

        Raises:
            LaunchError: a check has failed.
            OSError: the server's folder cannot be written.
        """
        with ExitStack() as stack:
            check_machine()
            check_llama_build()
            check_repository(self._settings.repository)
            self._choose_ports()
            self._starting = Start.of(self._settings.repository, self._settings.memory_bytes)
            models = [*self._starting.loaded, *self._starting.later, *self._starting.presets]
            artifacts = [path.read_text("utf-8") for path in self._settings.repository.glob(f"*/{ARTIFACT_FILE}")]
            write_holder(self._lock, url=self.url, models=models, artifacts=artifacts)
            mark = stack.enter_context(guarded(self._lock.fileno(), self._settings.stop_timeout_s))
            self._prepare_children(mark)
            stack.callback(self.stop)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    @property
    def url(self) -> str:
        """The URL of the frontend on this machine."""
        settings = self.frontend_settings
        host, port = "127.0.0.1" if settings.host in EVERY_ADDRESS else settings.host, settings.port
        scheme = "https" if settings.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Start both children."""
        self.triton.start()
        self.frontend.start()

    def start_again(self, child: Child) -> None:
        """Start a child that has ended, after its own children are killed and the shared memory of Triton is freed."""
        child.kill()
        if child is self.triton:
            free_shared_memory(self._mark)
        child.start()

    def stop(self) -> None:
        """Stop the frontend once its requests have ended, and kill Triton: it has nothing to save, and ends slowly."""
        self._is_stopping = True
        self.frontend.stop(self._settings.frontend.drain_timeout_s + self._settings.stop_timeout_s)
        self.triton.kill()

    def interrupt(self) -> None:
        """End the wait, now or when it begins; any thread may call this at any moment.

        The second call ends the running requests.
        """
        if self._is_stopping:
            self.frontend.send(END_NOW)
        self._events.put(Interrupted())

    def wait_until_ready(self) -> list[str]:
        """Wait until every model that could be loaded at the start has made a token; return the ids of all models.

        Raises:
            Interrupted: `interrupt` was called.
            LaunchError: a child, or a stage of Triton, has ended, no model could be loaded, or the time is up.
        """
        deadline = time.monotonic() + self._settings.ready_timeout_s
        threading.Thread(target=self._wait_for_first_tokens, args=(deadline,), daemon=True).start()
        ended: dict[int, tuple[float, str]] = {}
        has_crashed = False
        while True:
            try:
                event = self._events.get(timeout=_STAGE_POLL_S)
            except queue.Empty:
                self._check_stages(ended)
                continue
            match event:
                case Child() as child:
                    if child is self.triton and child.has_crashed and not has_crashed:
                        has_crashed = True  # a fault of Triton's that comes by chance: its issue 8882
                        self.report(f"{child.how_it_ended()} while it started; it is started again")
                        self.start_again(child)
                    elif not child.is_running:
                        raise _ended(child, child.how_it_ended())
                case Interrupted() as interrupted:
                    raise interrupted
                case TimeoutError() as exc:
                    raise self._not_ready(exc)
                case model_ids:
                    self.unserved = self._unserved(model_ids)
                    if not model_ids and not self._starting.later:
                        raise LaunchError("\n".join(self.unserved))
                    if not self.unserved:
                        self.triton.command = self._complete_command  # all models must load again after a crash
                    self.on_demand = list(self._starting.later)
                    self.on_devices = self._starting.on_devices
                    return [*model_ids, *self.on_demand]

    def watch(self) -> None:
        """Restart a child when it ends or hangs, until an exception.

        Raises:
            Interrupted: `interrupt` was called.
            LaunchError: a child has ended too often.
        """
        settings = self._settings
        watches = (
            (self.triton, settings.triton_hang_s, partial(is_triton_silent, self.frontend_settings)),
            (self.frontend, settings.frontend_hang_s, partial(is_silent, self.url)),
        )
        with ExitStack() as stack:
            for child, limit_s, check in watches:
                if limit_s:
                    stack.enter_context(hang_watch(child, check, (limit_s, settings.ready_timeout_s), self.report))
            self._restart_children()

    def _restart_children(self) -> None:
        plans = {child: RestartPlan(self._settings.max_restarts) for child in (self.triton, self.frontend)}
        restart_at: dict[Child, float] = {}  # time.monotonic()
        while True:
            try:
                event = self._events.get(
                    timeout=max(0.0, min(restart_at.values()) - time.monotonic()) if restart_at else None
                )
            except queue.Empty:
                child = min(restart_at, key=restart_at.__getitem__)
                del restart_at[child]
                self.start_again(child)
                continue
            match event:
                case Child() as child if not child.is_running and child not in restart_at:
                    restart_at[child] = time.monotonic() + self._pause_s(child, plans[child])
                case Interrupted() as interrupted:
                    raise interrupted

    def _pause_s(self, child: Child, plan: RestartPlan) -> float:
        """Return the seconds until an ended child is restarted.

        Raises:
            LaunchError: it has ended too often.
        """
        pause_s = plan.next_pause_s()
        if pause_s is None:
            again = f"restarted {plan.max_restarts} times in {WINDOW_S:g} s already (--max-restarts)"
            self.report(f"{child.how_it_ended()}; {again}")
            raise _ended(child, child.how_it_ended())
        self.report(f"{child.how_it_ended()}; restart in {pause_s:g} s")
        return pause_s

    def report(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self._notify(self._named("serve", text))

    def _choose_ports(self) -> None:
        ports = free_ports(self._settings.port_choices())
        self.triton_ports = TritonPorts(
            grpc=ports["--triton-grpc-port"],
            metrics=ports["--triton-metrics-port"],
            http=ports.get("--triton-http-port"),
        )
        endpoint = f"{ADDRESS}:{self.triton_ports.grpc}"
        self.frontend_settings = replace(
            self._settings.frontend,
            port=ports["--port"],
            triton_endpoints=(endpoint,),
            triton_key=self._settings.frontend.triton_key or secrets.token_urlsafe(),
        )

    def _prepare_children(self, mark: str) -> None:
        self._mark, settings = mark, self._settings
        folder, own = triton_folder(Path(self._lock.name).parent, settings.repository), settings.frontend
        installation = find_triton(settings.tritonserver, folder, settings.environment)
        tls = GrpcTls(cert=own.triton_tls_cert, key=own.triton_tls_key, client_ca=own.triton_tls_ca)
        key = self.frontend_settings.triton_key
        names, memory = self._starting.names, str(self._starting.total_bytes)
        options = TritonOptions(ports=self.triton_ports, key=key, models=names, shm_prefix=shm_prefix(mark), tls=tls)
        self._complete_command = tuple(triton_command(installation, options))
        triton = triton_command(installation, replace(options, is_partial=True))
        frontend = [sys.executable, "-P", "-m", "frontend", "api", *settings_to_arguments(self.frontend_settings)]
        environment = {**installation.environment, KEY_VARIABLE: key, MODEL_MEMORY_VARIABLE: memory}
        self.triton = self._child("triton", triton, environment, mark, folder=folder, secret=key, is_deaf=True)
        environment = {**settings.environment, **settings_to_environment(self.frontend_settings), SUPERVISED: "1"}
        self.frontend = self._child("frontend", frontend, environment, mark)

    def _child(self, name: str, command: list[str], environment: Mapping[str, str], mark: str, **options: Any) -> Child:
        marked = {**environment, MARK: mark, "PYTHONUNBUFFERED": "1"}
        return Child(name, command, marked, log=self._log, named=self._named, on_end=self._events.put, **options)

    def _wait_for_first_tokens(self, deadline: float) -> None:
        try:
            self._events.put(wait_for_first_tokens(self.frontend_settings, self.url, deadline))
        except TimeoutError as exc:
            self._events.put(exc)

    def _check_stages(self, ended: dict[int, tuple[float, str]]) -> None:
        """Check that Triton has noticed the end of each stage. It notices none before a stage's first message.

        Args:
            ended: by process id: when it was seen, by time.monotonic(), and how it ended. This updates it.

        Raises:
            LaunchError: it has not.
        """
        now, present = time.monotonic(), self.triton.ended_stages()
        for pid in ended.keys() - present.keys():  # Triton has waited for it, as for the trial run of its own
            del ended[pid]
        for pid, end in present.items():
            seen_s, _ = ended.setdefault(pid, (now, end))
            if now - seen_s >= _NOTICED_WITHIN_S:
                raise _ended(self.triton, end)

    def _unserved(self, model_ids: list[str]) -> list[str]:
        """Return a sentence for each model of the repository, or replica of one, that is not served."""
        reasons: dict[str, list[str]] = {}
        for stage, reason in self.triton.load_failures.items():
            reasons.setdefault(ensemble_of_stage(stage), []).append(f"{stage} {LOAD_FAILURE} {reason}")
        models = _models(self._settings.repository)
        num_replicas = Counter(models.values())
        return [
            f"{_title(name) if num_replicas[model_id] > 1 else model_id} is not served: "
            + "; ".join(reasons.get(name, ["the log of triton says why"]))
            for name, model_id in models.items()
            if (model_id not in model_ids and model_id in self._starting.loaded) or name in reasons
        ]

    def _not_ready(self, exc: TimeoutError) -> LaunchError:
        log = [line for child in (self.triton, self.frontend) for line in _last_lines(child)]
        return LaunchError(f"not ready after {self._settings.ready_timeout_s:g} s (--ready-timeout-s): {exc}", log)


def _models(repository: Path) -> dict[str, str]:
    """Return the ids of the models of a repository, by the ensembles of their replicas."""
    names = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    return {name: ensemble_to_model_id(name) for name in names if ensemble_of_stage(name) == name}


def _title(ensemble: str) -> str:
    return f"{ensemble_to_model_id(ensemble)}, replica {replica_suffix(ensemble)[1:] or 1},"


def _ended(child: Child, end: str) -> LaunchError:
    """Return the error with which the launcher ends after a child, or after a stage of Triton."""
    causes = [f"{stage} {LOAD_FAILURE} {reason}" for stage, reason in child.load_failures.items()]
    return LaunchError(f"{end}: {'; '.join(causes) or child.last_problem}", _last_lines(child))


def _last_lines(child: Child) -> list[str]:
    return [f"The last lines of {child.name}:", *child.last_lines]
