"""Several frontend processes on one port: the kernel deals out the connections, and one that dies is started again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from frontend import server
from frontend.connections.certificates import Certificates
from frontend.operations.supervisor import BEGIN_DRAIN, RELOAD_KEYS
from frontend.settings import Settings
from frontend.telemetry.log_lines import configure_logging
from frontend.telemetry.metrics import SHARED_FOLDER, forget_worker
from model_repository.cores import num_cores

logger = logging.getLogger(__name__)

MAX_WORKERS_BY_CORES = 8
_CORES_PER_WORKER = 4  # the engine, tritonserver and the stages need the others
_MIN_PAUSE_S = 1.0  # between two starts after a worker has died
_ADMISSION_START_S = 30.0
_LOOK_S = 0.1  # between two looks whether a process that starts is still there
_STOP_MARGIN_S = 8.0  # beyond the time that its requests have; then it is killed


def num_workers(settings: Settings) -> int:
    """Return how many processes the settings mean on this machine."""
    by_cores = num_cores() // _CORES_PER_WORKER
    return settings.workers or min(max(by_cores, 1), MAX_WORKERS_BY_CORES)


def run(settings: Settings, run_admission: Callable[..., None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 1 when the port cannot be had or the workers do not run.

    Args:
        settings: of each worker.
        run_admission: serves the limits of several workers in a process of its own; its arguments are those of
            `frontend.gateway.socket_server.run`. None: no limits are shared.
    """
    count = num_workers(settings)
    if settings.tls_cert:
        Certificates(settings)  # of no use to one worker, it is of none to any
    if count == 1:
        return server.run(settings)
    with ExitStack() as stack:
        addresses = [(settings.host, settings.port), (settings.admin_host, settings.admin_port)]
        ports = []
        for host, port in addresses if settings.admin_port else addresses[:1]:
            try:
                ports.append(stack.enter_context(_reserved(host, port)).getsockname()[1])
            except OSError as exc:
                server.log_unavailable(host, port, exc)
                return 1
        folder = stack.enter_context(TemporaryDirectory(prefix="conch-"))
        metrics_folder = Path(folder, "metrics")
        metrics_folder.mkdir()
        os.environ[SHARED_FOLDER] = str(metrics_folder)  # the workers inherit it
        limits_socket = settings.limits_socket or f"{folder}/limits.sock"
        settings = replace(settings, port=ports[0], limits_socket=limits_socket)
        return Workers(settings, run_admission).run(count)


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    has_listened: Event

    def listens_within(self, timeout_s: float) -> bool:
        """Wait until it listens; return whether it does."""
        deadline_s = time.monotonic() + timeout_s
        while self.process.is_alive() and time.monotonic() < deadline_s:
            if self.has_listened.wait(_LOOK_S):
                return True
        return False


class Workers:
    """The parent of the workers.

    Args:
        settings: of each; the port is reserved.
        run_admission: as in `run`.
    """

    def __init__(self, settings: Settings, run_admission: Callable[..., None] | None) -> None:
        self._settings = settings
        self._run_admission = run_admission
        self._context = get_context("spawn")  # grpc's threads do not survive a fork
        # Each worker holds the reading end: when the writing end closes, the parent is gone.
        self._is_alive, self._alive = self._context.Pipe(duplex=False)
        self._signal_read, self._signal_write = os.pipe()  # a byte for each signal: its number
        self._workers: list[_Worker] = []
        self._is_draining = self._context.Event()
        self._is_stopping = False

    def run(self, count: int) -> int:
        """Keep so many workers running until a signal; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, BEGIN_DRAIN, *([RELOAD_KEYS] if self._settings.key_file else [])):
            signal.signal(number, self._on_signal)
        admission = self._start_admission()
        if not all(child.listens_within(_ADMISSION_START_S) for child in admission):
            logger.error("the admission process does not start")
            self._stop(admission)
            return 1
        workers = self._workers = [self._start(_work, self._is_draining) for _ in range(count)]
        status = 0
        while True:
            ready = wait([self._signal_read, *(child.process.sentinel for child in (*admission, *workers))])
            if self._signal_read in ready:
                received = os.read(self._signal_read, 1)[0]
                if received not in (BEGIN_DRAIN, RELOAD_KEYS):
                    break
                self._hand_on(signal.Signals(received))
                continue
            dead = [worker for worker in workers if not worker.process.is_alive()]
            for worker in dead:
                logger.error("worker %s ended with code %s", worker.process.pid, worker.process.exitcode)
                forget_worker(worker.process.pid)
            if not all(worker.has_listened.is_set() for worker in dead):  # nor would the next one
                status = 1
                break
            time.sleep(_MIN_PAUSE_S * bool(dead))
            for worker in dead:
                workers.remove(worker)
                if not self._is_draining.is_set():  # it would take requests again
                    workers.append(self._start(_work, self._is_draining))
            for child in admission:
                if not child.process.is_alive():
                    logger.error("the admission process ended with code %s", child.process.exitcode)
                    time.sleep(_MIN_PAUSE_S)
                    admission = self._start_admission()
        self._stop(workers)
        self._stop(admission)  # after those whose requests it counts
        return status

    def _start_admission(self) -> list[_Worker]:
        """Start the admission process; return it, or nothing where no limits are shared."""
        return [] if self._run_admission is None else [self._start(_admit, self._run_admission)]

    def _start(self, target: Callable[..., None], *further: object) -> _Worker:
        has_listened = self._context.Event()
        process = self._context.Process(target=target, args=(self._settings, self._is_alive, has_listened, *further))
        process.start()
        return _Worker(process, has_listened)

    def _hand_on(self, number: signal.Signals) -> None:
        """Hand a signal on to the workers that have a handler for it. A drain is told again by each that begins it."""
        if number == BEGIN_DRAIN:
            self._is_draining.set()  # before the look at who listens: the others look at this once they do
        _tell([worker for worker in self._workers if worker.has_listened.is_set()], number)

    def _stop(self, children: list[_Worker]) -> None:
        self._is_stopping = True
        _tell(children, signal.SIGTERM)
        deadline_s = time.monotonic() + self._settings.drain_timeout_s + _STOP_MARGIN_S
        for child in children:
            child.process.join(max(0.0, deadline_s - time.monotonic()))
            if child.process.is_alive():
                logger.error("process %s does not stop, it is killed", child.process.pid)
                child.process.kill()
                child.process.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping and number in (signal.SIGTERM, signal.SIGINT):
            _tell(self._workers, signal.SIGTERM)  # for the second time: at once
        os.write(self._signal_write, bytes([number]))


def _tell(children: Sequence[_Worker], number: signal.Signals) -> None:
    for child in children:
        if child.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child.process.pid, number)


def _work(settings: Settings, parent: Connection, has_listened: Event, is_draining: Event) -> None:
    """Serve as one of several, in a process of its own."""

    def on_listening() -> None:
        has_listened.set()
        if is_draining.is_set():
            os.kill(os.getpid(), BEGIN_DRAIN)

    configure_logging(settings.log_format)
    raise SystemExit(server.run(settings, parent=parent.fileno(), on_listening=on_listening))


def _admit(settings: Settings, parent: Connection, has_listened: Event, run_admission: Callable[..., None]) -> None:
    """Keep the limits of all workers, in a process of its own."""
    configure_logging(settings.log_format)
    run_admission(settings, parent=parent.fileno(), on_listening=has_listened.set)


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that holds the port without listening; the workers' sockets join it.

    Raises:
        OSError: somebody else has it, or there is no such address.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family) as probe:  # another server of ours would share its port, too
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()
    reserved = socket.socket(family)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved
