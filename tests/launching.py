"""Ports that stay free until they are used, and a launcher's settings with such ports."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from frontend.launcher.launcher import LauncherSettings
from frontend.settings import Settings
from model_repository.contract.tensors import KEY_VARIABLE

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
    state_dir: Path,
    frontend: Settings,
    environment: Mapping[str, str] = os.environ,
    http_port: int | None = None,
) -> LauncherSettings:
    """Return a launcher's settings; the frontend gets a free port in any case."""
    return LauncherSettings(
        repository=repository,
        state_dir=state_dir,
        environment=environment,
        frontend=replace(frontend, port=free_port(), triton_key=KEY_OF_ALL),
        triton_grpc_port=free_port(),
        triton_metrics_port=free_port(),
        triton_http_port=http_port,
    )
