"""Starts tritonserver and the frontend, waits until the models answer, starts one that died again, ends both."""

from __future__ import annotations

import hashlib
import math
import queue
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from frontend.launcher.checks import (
    PortChoice,
    check_limits,
    check_repository,
    check_shared_memory,
    free_ports,
    free_shared_memory_bytes,
)
from frontend.launcher.child import Child, json_line, text_line
from frontend.launcher.errors import ChildEnded, NotReadyInTime
from frontend.launcher.first_token import wait_for_first_tokens
from frontend.launcher.guard import MARK, free_shared_memory, guarded, shm_prefix
from frontend.launcher.hang_watch import HangWatch
from frontend.launcher.state_lock import locked
from frontend.launcher.triton_server import ADDRESS, DEFAULT_FRONTEND, GrpcTls, TritonPorts, find_triton, triton_command
from frontend.options import settings_to_arguments, settings_to_environment
from frontend.settings import Settings, SettingsError
from model_repository.contract.tensors import KEY_VARIABLE

WINDOW_S = 600.0  # the restarts of so long count
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0


class RestartPlan:
    """Counts restarts. Pure.

    Args:
        max_restarts: within the window; 0: none at all.
        clock: monotonic seconds.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._died_at: deque[float] = deque()

    def next_pause_s(self) -> float | None:
        """Note that it died; return how long to wait before it is started again, None when it died too often."""
        now = self._clock()
        while self._died_at and now - self._died_at[0] >= WINDOW_S:
            self._died_at.popleft()
        if len(self._died_at) >= self.max_restarts:
            return None
        self._died_at.append(now)
        return float(min(_FIRST_PAUSE_S * 2 ** (len(self._died_at) - 1), _MAX_PAUSE_S))


class Interrupted(Exception):
    """A signal asked the launcher to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """What `serve` is told. A port 0 means any free one.

    Raises:
        SettingsError: at construction.
    """

    repository: Path
    state_dir: Path
    environment: Mapping[str, str]  # the launcher's own; the children inherit it
    frontend: Settings = DEFAULT_FRONTEND  # the launcher sets its Triton endpoint
    triton_grpc_port: int = 8001
    triton_metrics_port: int = 8002
    triton_http_port: int | None = None  # None: it is not opened
    tritonserver: Path | None = None  # None: one is looked for
    ready_timeout_s: float = 120.0
    stop_timeout_s: float = 5.0  # of each child, then it is killed; the frontend has its time for draining besides
    max_restarts: int = 5  # of each child after it was ready, in ten minutes; then the launcher ends
    triton_hang_s: float = 30.0  # of silence, after which it is killed, and started again; 0: it never is

    def __post_init__(self) -> None:
        if self.frontend.tls_client_ca:
            rule = "serve asks the frontend itself and has no certificate; run api and tritonserver instead"
            raise SettingsError(f"tls_client_ca={self.frontend.tls_client_ca!r}: {rule}")
        if self.frontend.triton_tls_ca and not self.frontend.triton_tls_cert:
            rule = "its Triton shows the frontend's own certificate: it needs triton_tls_cert and triton_tls_key"
            raise SettingsError(f"triton_tls_ca={self.frontend.triton_tls_ca!r}: {rule}")
        if self.frontend.triton_tls_ca and self.triton_http_port is not None:
            rule = "Triton's HTTP knows no TLS, leave it out with --triton-tls-ca"
            raise SettingsError(f"--triton-http-port={self.triton_http_port}: {rule}")
        for choice in self.port_choices():
            if not 0 <= choice.port <= 65535:
                raise SettingsError(f"{choice.flag}={choice.port}: must be a whole number from 0 to 65535")
        named = [choice.port for choice in self.port_choices() if choice.port]
        if len(set(named)) < len(named):
            clash = ", ".join(f"{choice.flag}={choice.port}" for choice in self.port_choices())
            raise SettingsError(f"{clash}: each port can be used once only")
        if self.max_restarts < 0:
            raise SettingsError(f"--max-restarts={self.max_restarts}: must not be negative")
        if not 0 <= self.triton_hang_s < math.inf:
            raise SettingsError(f"--triton-hang-s={self.triton_hang_s:g}: must be a number of seconds")
        for flag, timeout_s in (("--ready-timeout-s", self.ready_timeout_s), ("--stop-timeout-s", self.stop_timeout_s)):
            if not 0 < timeout_s < math.inf:
                raise SettingsError(f"{flag}={timeout_s:g}: must be a number of seconds above 0")

    def port_choices(self) -> list[PortChoice]:
        """Return every port that is listened on."""
        frontend = self.frontend
        return [
            PortChoice("--port", frontend.host, frontend.port),
            PortChoice("--triton-grpc-port", ADDRESS, self.triton_grpc_port),
            PortChoice("--triton-metrics-port", ADDRESS, self.triton_metrics_port),
            *(PortChoice("--triton-http-port", ADDRESS, port) for port in (self.triton_http_port,) if port is not None),
            *([PortChoice("--admin-port", frontend.admin_host, frontend.admin_port)] if frontend.admin_port else []),
        ]


class Launcher:
    """The two children of `serve`; a context manager that leaves no process behind.

    Entering it checks what can be checked and takes the state directory; nothing runs yet. Then `start` starts both, or
    `triton` and `frontend` are used one by one: started, stopped, killed, and started again on the same ports.

    Args:
        log: takes one line of the children's logs, from other threads.
    """

    triton: Child
    frontend: Child
    triton_ports: TritonPorts
    frontend_settings: Settings

    def __init__(self, settings: LauncherSettings, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._log = log
        self._named = json_line if settings.frontend.log_format == "json" else text_line
        self._events: queue.SimpleQueue[Child | list[str] | TimeoutError | Interrupted] = queue.SimpleQueue()
        self._cleanup = ExitStack()
        self._is_stopping = False
        self._key = ""  # of this launcher, where the frontend wants keys

    def __enter__(self) -> Self:
        """Check everything and prepare the children.

        Raises:
            LaunchError: something is missing or taken.
            OSError: the state directory cannot be written.
        """
        state_dir = self._settings.state_dir.resolve()
        with ExitStack() as stack:
            check_limits()
            lock = stack.enter_context(locked(state_dir))
            check_repository(self._settings.repository)
            check_shared_memory(free_shared_memory_bytes())
            self._choose_ports()
            lock.name_url(self.url)
            mark = stack.enter_context(guarded(lock.file.fileno(), self._settings.stop_timeout_s))
            self._prepare_children(state_dir, mark)
            stack.callback(self.stop)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    @property
    def url(self) -> str:
        """Where this machine reaches the frontend."""
        host, port = self._address
        scheme = "https" if self._settings.frontend.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Start both children."""
        self.triton.start()
        self.frontend.start()

    def start_again(self, child: Child) -> None:
        """Start a child that has ended, and first remove what it left: its own children, Triton's shared memory."""
        child.kill()
        if child is self.triton:
            free_shared_memory(self._mark)
        child.start()

    def stop(self) -> None:
        """Stop both children: the frontend first, so that its requests can end."""
        self._is_stopping = True
        self.frontend.stop(self._settings.frontend.drain_timeout_s + self._settings.stop_timeout_s)
        self.triton.stop(self._settings.stop_timeout_s)

    def interrupt(self) -> None:
        """End the waiting, now or when it begins; a signal handler may call this, whatever the launcher is doing.

        For the second time it ends the requests that are under way.
        """
        if self._is_stopping:
            self.frontend.ask_to_end()
        self._events.put(Interrupted())

    def wait_until_ready(self) -> list[str]:
        """Wait until every served model has made a token; return the models' ids.

        Raises:
            ChildEnded: a child died.
            Interrupted: somebody asked for it.
            NotReadyInTime: the time is up.
        """
        deadline = time.monotonic() + self._settings.ready_timeout_s
        threading.Thread(target=self._ask_for_first_tokens, args=(deadline,), daemon=True).start()
        while True:
            match self._events.get():
                case Child() as child:
                    if not child.is_running:
                        raise _ended(child)
                case Interrupted() as interrupted:
                    raise interrupted
                case TimeoutError() as exc:
                    raise NotReadyInTime(self._not_ready_message(exc))
                case model_ids:
                    return model_ids

    def watch(self) -> None:
        """Start a child again when it dies, or Triton hangs, and wait for what cannot be mended.

        Raises:
            ChildEnded: a child died too often.
            Interrupted: somebody asked for it.
        """
        with ExitStack() as stack:
            if self._settings.triton_hang_s:
                limits_s = self._settings.triton_hang_s, self._settings.ready_timeout_s
                stack.enter_context(HangWatch(self.triton, self.frontend_settings, limits_s, self._say))
            self._restart_what_dies()

    def _restart_what_dies(self) -> None:
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
        """Return how long to wait before a child that died is started again.

        Raises:
            ChildEnded: it died too often.
        """
        pause_s = plan.next_pause_s()
        if pause_s is None:
            again = f"it was started again {plan.max_restarts} times in {WINDOW_S:g} s already (--max-restarts)"
            self._say(f"{child.how_it_ended()}; {again}")
            raise _ended(child)
        self._say(f"{child.how_it_ended()}; it is started again in {pause_s:g} s")
        return pause_s

    def _say(self, text: str) -> None:
        self._log(self._named("serve", text))

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
        if self.frontend_settings.key_file:
            self._key = secrets.token_urlsafe()
            sha256 = hashlib.sha256(self._key.encode()).hexdigest()
            self.frontend_settings = replace(self.frontend_settings, launcher_key_sha256=sha256)

    def _prepare_children(self, state_dir: Path, mark: str) -> None:
        self._mark, settings = mark, self._settings
        installation = find_triton(settings.tritonserver, state_dir, settings.environment)
        repository, own = settings.repository.resolve(), settings.frontend
        tls = GrpcTls(cert=own.triton_tls_cert, key=own.triton_tls_key, client_ca=own.triton_tls_ca)
        key = self.frontend_settings.triton_key
        triton = triton_command(installation, repository, self.triton_ports, shm_prefix(mark), key=key, tls=tls)
        frontend = [sys.executable, "-m", "frontend", "api", *settings_to_arguments(self.frontend_settings)]
        self.triton = self._child("triton", triton, {**installation.environment, KEY_VARIABLE: key}, mark, secret=key)
        environment = {**settings.environment, **settings_to_environment(self.frontend_settings)}
        self.frontend = self._child("frontend", frontend, environment, mark)

    def _child(
        self, name: str, command: list[str], environment: Mapping[str, str], mark: str, secret: str = ""
    ) -> Child:
        marked = {**environment, MARK: mark, "PYTHONUNBUFFERED": "1"}
        return Child(name, command, marked, log=self._log, named=self._named, on_end=self._events.put, secret=secret)

    @property
    def _address(self) -> tuple[str, int]:
        settings = self.frontend_settings
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host), settings.port

    def _ask_for_first_tokens(self, deadline: float) -> None:
        try:
            is_tls = bool(self.frontend_settings.tls_cert)
            self._events.put(wait_for_first_tokens(*self._address, deadline, self._key, is_tls=is_tls))
        except TimeoutError as exc:
            self._events.put(exc)

    def _not_ready_message(self, exc: TimeoutError) -> str:
        lines = [f"not ready after {self._settings.ready_timeout_s:g} s (--ready-timeout-s): {exc}"]
        for child in (self.triton, self.frontend):
            lines += [f"The last lines of {child.name}:", *child.last_lines]
        return "\n".join(lines)


def _ended(child: Child) -> ChildEnded:
    """Return why the launcher ends with a child that has ended."""
    if child.load_failures:
        return ChildEnded("\n".join([f"{child.how_it_ended()}: a model cannot be served", *child.load_failures]))
    lines = child.last_lines or ["(it logged nothing)"]
    return ChildEnded("\n".join([f"{child.how_it_ended()}; its last lines:", *lines]))
