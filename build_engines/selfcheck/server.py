"""The server that is checked: `python -m frontend serve` on free ports, as a child process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import elapsed_text
from build_engines.selfcheck.command import tail
from build_engines.tensorrt_llm import child

_ADDRESS = "127.0.0.1"
_POLL_S = 0.2
_SAY_PERIOD_S = 30.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where it listens, and how long its start took."""

    url: str
    triton_url: str
    ready_after_s: float

    def triton_version(self) -> str:
        """Ask Triton for its version."""
        with urllib.request.urlopen(f"{self.triton_url}/v2", timeout=10) as answer:
            described = json.loads(answer.read())
        return f"{described.get('name')} {described.get('version')}"


@contextmanager
def serving(repository: Path, state_dir: Path, log: Path, timeout_s: float) -> Iterator[Server]:
    """Serve a repository while the block runs.

    Args:
        repository: as `render` writes it.
        state_dir: for the launcher's own files.
        log: where the server's output goes.
        timeout_s: how long the models may take to load.

    Raises:
        BuildError: it ended, or was not ready in time; the end of its log is in the message.
    """
    port, triton_port = _free_port(), _free_port()
    serve = ["-m", "frontend", "serve", "--repository", str(repository), "--state-dir", str(state_dir)]
    ports = ["--port", str(port), "--triton-http-port", str(triton_port)]
    ports += ["--triton-grpc-port", "0", "--triton-metrics-port", "0", "--ready-timeout-s", str(timeout_s)]
    # The kernel ends it with this process, however that comes.
    wrapper = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*wrapper, sys.executable, *serve, *ports],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C ends this process, which then ends that one
        )
    try:
        url = f"http://{_ADDRESS}:{port}"
        _wait_until_ready(process, url, log, timeout_s)
        yield Server(url, f"http://{_ADDRESS}:{triton_port}", time.monotonic() - started)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float) -> None:
    started = said = time.monotonic()
    while not _is_ready(url):
        now = time.monotonic()
        if process.poll() is not None:
            raise BuildError("\n".join((f"the server ended with status {process.returncode}:", *tail(log))))
        if now - started > timeout_s + _STOP_TIMEOUT_S:
            raise BuildError("\n".join((f"the server was not ready after {elapsed_text(now - started)}:", *tail(log))))
        if now - said > _SAY_PERIOD_S:
            said = now
            sys.stderr.write(f"    the server loads, {elapsed_text(now - started)}\n")
        time.sleep(_POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:  # nobody listens yet, or it says that it is not ready
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        return int(listener.getsockname()[1])
