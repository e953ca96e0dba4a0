"""Commands that run beside a test, ports that stay free until they are used, and a launcher's settings."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from frontend.launcher.launcher import Launcher, LauncherSettings
from frontend.launcher.state_lock import server_lock
from frontend.settings import Settings
from model_repository.contract.tensors import KEY_VARIABLE
from model_repository.system.log_time import TIME
from tests.frontend_with import command_with
from tests.waiting import DEADLINE_S, wait_until

_KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MAX_WORKERS = 16
_given: set[int] = set()
FREE_PORTS = ("--port=0", "--triton-grpc-port=0", "--triton-metrics-port=0")  # options of `serve` and `run`
KEY_OF_ALL = secrets.token_urlsafe()  # to the restricted APIs of every Triton, so that one frontend may have several


def environment_with_key() -> dict[str, str]:
    """Return the environment of a command that uses restricted APIs of Triton."""
    return {**os.environ, KEY_VARIABLE: KEY_OF_ALL}


def free_port() -> int:
    """Return a free port outside the kernel's own range.

    The kernel could give a port of that range to another process while the server starts, or starts again.
    """
    first_of_kernel = int(_KERNELS_OWN.read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        # Each process of the tests has ports of its own.
        port = first_of_kernel // 2 + secrets.randbelow(first_of_kernel // (2 * _MAX_WORKERS)) * _MAX_WORKERS + worker
        with socket.socket() as listener, contextlib.suppress(OSError):  # it is taken
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
            if port not in _given:
                _given.add(port)
                return port


def launcher_settings(
    repository: Path,
    frontend: Settings,
    environment: Mapping[str, str] = os.environ,
    http_port: int | None = None,
) -> LauncherSettings:
    """Return a launcher's settings; the frontend gets a free port in any case."""
    return LauncherSettings(
        repository=repository,
        environment=environment,
        frontend=replace(frontend, port=free_port(), triton_key=KEY_OF_ALL),
        triton_grpc_port=free_port(),
        triton_metrics_port=free_port(),
        triton_http_port=http_port,
    )


@contextmanager
def launched(settings: LauncherSettings, home: Path, log_path: Path) -> Iterator[Launcher]:
    """Enter a launcher that has a folder of a home; the log of its children goes to a file."""
    with (
        log_path.open("w") as log,
        server_lock(home, "any", is_shared=True) as lock,
        Launcher(settings, lock, lambda line: print(line, file=log, flush=True)) as launcher,
    ):
        yield launcher


def untimed(log: str) -> str:
    """Return lines of a log without their times."""
    return re.sub(rf"{TIME.pattern} ", "", log)


class Command:
    """A running command, and what it wrote on both streams."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.process = process
        self.log_path = log_path

    @property
    def log(self) -> str:
        """What it wrote."""
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        found: list[str] = re.findall(r"listens on ([^\s\"]+)", self.log)
        return found[0] if found else ""

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the log has a text this many times; fail if the command ends before."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None
            is_found = self.log.count(text) >= count
            assert is_found or not has_ended, self.log
            return is_found

        wait_until(is_there, f"{text!r} in the log")

    def status(self) -> int:
        """Return the exit status, once it has ended."""
        return self.process.wait(DEADLINE_S)


@contextmanager
def running(
    folder: Path, *words: str, constants: Sequence[str] = (), args: Sequence[str | Path] = (), **options: Any
) -> Iterator[Command]:
    """Run a command of `python -m frontend` until the end of the block; its log is in the folder.

    Args:
        constants: with other values, as `tests.frontend_with` takes them.
        args: another command line to run in place of it.
        options: of the process.
    """
    path = folder / f"{words[0]}-{len(list(folder.iterdir()))}.log"
    command = args or [*command_with(*constants), *words]
    with path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, **options) as process:
        try:
            yield Command(process, path)
        finally:
            process.kill()
