"""Several frontend processes on one port: the kernel deals out the connections, and one that dies is started again."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from tempfile import TemporaryDirectory
from types import FrameType

from frontend import server
from frontend.limits import admission_process
from frontend.settings import Settings
from model_repository.cores import num_cores

logger = logging.getLogger(__name__)

MAX_WORKERS_BY_CORES = 8
_CORES_PER_WORKER = 4  # the engine, tritonserver and the stages need the others
_MIN_PAUSE_S = 1.0  # between two starts after a worker has died
_ADMISSION_START_S = 30.0
_LOOK_S = 0.1  # between two looks whether a process that starts is still there
_STOP_MARGIN_S = 5.0  # beyond the time that its requests have; then it is killed

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"


def num_workers(settings: Settings) -> int:
    """Return how many processes the settings mean on this machine."""
    by_cores = num_cores() // _CORES_PER_WORKER
    return settings.workers or min(max(by_cores, 1), MAX_WORKERS_BY_CORES)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 1 when the port cannot be had or the workers do not run."""
    count = num_workers(settings)
    if count == 1:
        return server.run(settings)
    try:
        with _reserved(settings.host, settings.port) as port, TemporaryDirectory(prefix="conch-") as folder:
            limits_socket = settings.limits_socket or f"{folder}/limits.sock"
            return Workers(replace(settings, port=port.getsockname()[1], limits_socket=limits_socket)).run(count)
    except OSError as exc:
        server.log_unavailable(settings, exc)
        return 1


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
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context = get_context("spawn")  # grpc's threads do not survive a fork
        # Each worker holds the reading end: when the writing end closes, the parent is gone.
        self._is_alive, self._alive = self._context.Pipe(duplex=False)
        self._stop_read, self._stop_write = os.pipe()

    def run(self, count: int) -> int:
        """Keep so many workers running until a signal; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        admission = self._start(_admit)
        if not admission.listens_within(_ADMISSION_START_S):
            logger.error("the admission process does not start")
            self._stop([admission])
            return 1
        workers = [self._start(_work) for _ in range(count)]
        status = 0
        while True:
            ready = wait([self._stop_read, *(child.process.sentinel for child in (admission, *workers))])
            if self._stop_read in ready:
                break
            dead = [worker for worker in workers if not worker.process.is_alive()]
            for worker in dead:
                logger.error("worker %s ended with code %s", worker.process.pid, worker.process.exitcode)
            if not all(worker.has_listened.is_set() for worker in dead):  # nor would the next one
                status = 1
                break
            time.sleep(_MIN_PAUSE_S * bool(dead))
            for worker in dead:
                workers[workers.index(worker)] = self._start(_work)
            if not admission.process.is_alive():
                logger.error("the admission process ended with code %s", admission.process.exitcode)
                time.sleep(_MIN_PAUSE_S)
                admission = self._start(_admit)
        self._stop(workers)
        self._stop([admission])  # after those whose requests it counts
        return status

    def _start(self, target: Callable[[Settings, Connection, Event], None]) -> _Worker:
        has_listened = self._context.Event()
        process = self._context.Process(target=target, args=(self._settings, self._is_alive, has_listened))
        process.start()
        return _Worker(process, has_listened)

    def _stop(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.process.terminate()
        deadline_s = time.monotonic() + self._settings.shutdown_timeout_s + _STOP_MARGIN_S
        for worker in workers:
            worker.process.join(max(0.0, deadline_s - time.monotonic()))
            if worker.process.is_alive():
                logger.error("worker %s does not stop, it is killed", worker.process.pid)
                worker.process.kill()
                worker.process.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        os.write(self._stop_write, b"\0")


def _work(settings: Settings, parent: Connection, has_listened: Event) -> None:
    """Serve as one of several, in a process of its own."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    raise SystemExit(server.run(settings, parent=parent.fileno(), on_listening=has_listened.set))


def _admit(settings: Settings, parent: Connection, has_listened: Event) -> None:
    """Keep the limits of all workers, in a process of its own."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    admission_process.run(settings, parent=parent.fileno(), on_listening=has_listened.set)


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
