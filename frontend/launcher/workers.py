"""Several frontend processes on one port: the kernel distributes the connections; a dead or hanging one is replaced."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from frontend import server
from frontend.connections.certificates import Certificates
from frontend.request_context import LIMITS_SOCKET, STORE_SOCKET
from frontend.settings import Settings
from frontend.supervision import BEGIN_DRAIN, END_NOW, RELOAD_KEYS, SUPERVISED
from frontend.telemetry.log_lines import configure_logging
from frontend.telemetry.metrics import SHARED_FOLDER, forget_worker
from model_repository.system.cores import num_cores

logger = logging.getLogger(__name__)

MAX_WORKERS_BY_CORES = 8
_CORES_PER_WORKER = 4  # the engine, tritonserver and the stages need the other cores
_TEMPORARY = "/tmp"  # not TMPDIR, whose path may be long
_MIN_PAUSE_S = 1.0  # wait until an ended process is replaced
_ADMISSION_START_S = 300.0  # only a hang takes longer, also on a busy machine
_POLL_S = 0.1  # interval of the checks whether a starting process still runs
_HANG_S = 30.0  # without a turn of its event loop; then a worker is killed
_STOP_MARGIN_S = 8.0  # beyond drain_timeout_s; then a worker is killed


def num_workers(settings: Settings) -> int:
    """Return the number of workers on this machine."""
    by_cores = num_cores() // _CORES_PER_WORKER
    return settings.workers or min(max(by_cores, 1), MAX_WORKERS_BY_CORES)


def run(settings: Settings, run_admission: Callable[..., None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 1 when the port is in use or the workers do not start.

    Args:
        settings: of each worker.
        run_admission: serves the limits of several workers, and their store in memory, in a process of its own; its
            arguments are those of `frontend.gateway.shared_limiter.run`. None: each worker has its own ones.
    """
    count = num_workers(settings)
    if settings.tls_cert:
        Certificates(settings)  # an error here would come from each worker
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
        folder = stack.enter_context(_shared_folder())
        # The workers inherit these variables.
        os.environ[SHARED_FOLDER] = str(folder / "metrics")
        os.environ["PYTHONSAFEPATH"] = "1"  # else a new Python imports from the current folder
        if run_admission is not None:
            os.environ[LIMITS_SOCKET] = str(folder / "limits.sock")
            os.environ[STORE_SOCKET] = str(folder / "store.sock")
        return Workers(replace(settings, port=ports[0]), run_admission).run(count)


@contextmanager
def _shared_folder() -> Iterator[Path]:
    """Make a folder for the metrics of the workers and the sockets of the admission process.

    Its path is short: that of a socket has at most 107 bytes. It is not in /dev/shm, since logind removes files
    of a user there at the last logout (RemoveIPC). Tools that remove old temporary files leave a locked folder alone.
    """
    with ExitStack() as stack:
        parent = _TEMPORARY if os.access(_TEMPORARY, os.W_OK) else None
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="conch-", dir=parent)))
        (folder / "metrics").mkdir()
        for each in (folder, folder / "metrics"):
            descriptor = os.open(each, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # this file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    has_listened: ctypes.c_bool  # shared without a lock: a killed process would keep it
    turned_s: ctypes.c_double  # the last turn of its event loop, by time.monotonic(); 0: none yet

    def listens_within(self, timeout_s: float) -> bool:
        """Wait until the process listens; return whether it does."""
        deadline_s = time.monotonic() + timeout_s
        while self.process.is_alive() and time.monotonic() < deadline_s:
            if self.has_listened.value:
                return True
            time.sleep(_POLL_S)
        return False

    @property
    def hangs(self) -> bool:
        """Whether its event loop has stopped."""
        return bool(self.turned_s.value) and time.monotonic() - self.turned_s.value > _HANG_S


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
        self._is_draining = self._flag()
        self._is_stopping = False

    def run(self, count: int) -> int:
        """Keep `count` workers running until a signal; return the exit code."""
        ours = (signal.SIGTERM, signal.SIGINT, END_NOW, BEGIN_DRAIN)
        for number in (*ours, *([RELOAD_KEYS] if self._settings.key_file else [])):
            signal.signal(number, self._on_signal)
        admission = self._start_admission()
        if not all(child.listens_within(_ADMISSION_START_S) for child in admission):
            logger.error("the admission process does not start")
            self._stop(admission, END_NOW)
            return 1
        workers = self._workers = [self._start(_work, self._is_draining) for _ in range(count)]
        status = 0
        while True:
            sentinels = [child.process.sentinel for child in (*admission, *workers)]
            ready = wait([self._signal_read, *sentinels], timeout=server.TURN_INTERVAL_S)
            if self._signal_read in ready:
                received = os.read(self._signal_read, 1)[0]
                if received not in (BEGIN_DRAIN, RELOAD_KEYS):
                    break
                self._forward(signal.Signals(received))
                continue
            for worker in workers:
                if worker.hangs and worker.process.is_alive():
                    logger.error("worker %s runs, but does nothing any more: killed", worker.process.pid)
                    worker.process.kill()
                    worker.process.join()
            dead = [worker for worker in workers if not worker.process.is_alive()]
            for worker in dead:
                logger.error("worker %s ended with code %s", worker.process.pid, worker.process.exitcode)
                forget_worker(worker.process.pid)
            if not all(worker.has_listened.value for worker in dead):  # the next worker would fail too
                status = 1
                break
            time.sleep(_MIN_PAUSE_S * bool(dead))
            for worker in dead:
                workers.remove(worker)
                if not self._is_draining.value:  # a new worker would accept requests
                    workers.append(self._start(_work, self._is_draining))
            for child in admission:
                if not child.process.is_alive():
                    logger.error("the admission process ended with code %s", child.process.exitcode)
                    time.sleep(_MIN_PAUSE_S)
                    admission = self._start_admission()
        self._stop(workers, signal.SIGTERM)
        self._stop(admission, END_NOW)  # it counts the workers' requests until they end
        return status

    def _start_admission(self) -> list[_Worker]:
        """Start the admission process and return it, if the workers share limits."""
        return [] if self._run_admission is None else [self._start(_admit, self._run_admission)]

    def _start(self, target: Callable[..., None], *further: object) -> _Worker:
        has_listened, turned_s = self._flag(), self._context.RawValue(ctypes.c_double, 0.0)
        arguments = self._settings, self._is_alive, has_listened, turned_s, *further
        process = self._context.Process(target=target, args=arguments)
        process.start()
        return _Worker(process, has_listened, turned_s)

    def _flag(self) -> ctypes.c_bool:
        """Return a flag in memory that the workers share."""
        return self._context.RawValue(ctypes.c_bool, False)

    def _forward(self, number: signal.Signals) -> None:
        """Send a signal to the workers that have a handler for it; a later worker checks for a drain by itself."""
        if number == BEGIN_DRAIN:
            self._is_draining.value = True  # first: a worker that does not listen yet reads this when it does
        _send([worker for worker in self._workers if worker.has_listened.value], number)

    def _stop(self, children: list[_Worker], number: signal.Signals) -> None:
        self._is_stopping = True
        _send(children, number)
        deadline_s = time.monotonic() + self._settings.drain_timeout_s + _STOP_MARGIN_S
        for child in children:
            child.process.join(max(0.0, deadline_s - time.monotonic()))
            if child.process.is_alive():
                logger.error("process %s does not stop and is killed", child.process.pid)
                child.process.kill()
                child.process.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_second = self._is_stopping and number in (signal.SIGTERM, signal.SIGINT) and SUPERVISED not in os.environ
        if is_second or number == END_NOW:
            _send(self._workers, END_NOW)
        os.write(self._signal_write, bytes([number]))


def _send(children: Sequence[_Worker], number: signal.Signals) -> None:
    for child in children:
        if child.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child.process.pid, number)


def _work(
    settings: Settings,
    parent: Connection,
    has_listened: ctypes.c_bool,
    turned_s: ctypes.c_double,
    is_draining: ctypes.c_bool,
) -> None:
    """Serve as one of several workers, in a process of its own."""

    def on_turn() -> None:
        turned_s.value = time.monotonic()

    def on_listening() -> None:
        has_listened.value = True
        if is_draining.value:
            os.kill(os.getpid(), BEGIN_DRAIN)

    configure_logging(settings.log_format)
    raise SystemExit(server.run(settings, parent=parent.fileno(), on_listening=on_listening, on_turn=on_turn))


def _admit(
    settings: Settings,
    parent: Connection,
    has_listened: ctypes.c_bool,
    turned_s: ctypes.c_double,
    run_admission: Callable[..., None],
) -> None:
    """Run the admission process: it keeps the limits of all workers, and what they store in memory."""

    def on_listening() -> None:
        has_listened.value = True

    configure_logging(settings.log_format)
    paths = os.environ[LIMITS_SOCKET], os.environ[STORE_SOCKET]
    run_admission(settings, *paths, parent=parent.fileno(), on_listening=on_listening)


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that holds the port without listening; the workers' sockets share the port.

    Raises:
        OSError: the port is in use, or this machine has no such address.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family) as attempt:  # SO_REUSEPORT alone would share the port of another server of ours
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(address)
        attempt.listen()
    reserved = socket.socket(family)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved
