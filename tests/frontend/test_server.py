from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.connections.self_signed import make
from tests.launching import free_port

pytestmark = pytest.mark.usefixtures("servers")

RUN = """
import gc, logging, sys
from frontend.server import run
from frontend.settings import Settings
logging.basicConfig(level=logging.INFO, format="%(message)s")
log_frozen = lambda: logging.info("%d objects are frozen", gc.get_freeze_count())
sys.exit(run(Settings(port=int(sys.argv[1]), triton_endpoints=("127.0.0.1:1",)), on_listening=log_frozen))
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", RUN, "0"], stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(server: subprocess.Popen[str], number: signal.Signals) -> None:
    assert server.stderr is not None
    listening = next(line for line in server.stderr if " listens on " in line)
    url = listening.rpartition(" listens on ")[2].strip()
    with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
        assert answer.status == 200
    server.send_signal(number)
    assert server.wait(timeout=30) == 0


def test_the_garbage_collector_does_not_walk_over_modules_and_classes(server: subprocess.Popen[str]) -> None:
    assert server.stderr is not None
    frozen = next(line for line in server.stderr if "objects are frozen" in line)
    assert int(frozen.split()[0]) > 10_000


def test_a_port_in_use_is_said_and_is_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([sys.executable, "-c", RUN, str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_address_includes_those_of_ipv4(num_workers: int) -> None:
    # The event loop opens an IPv6 socket without IPv4.
    options = ["--host=::", "--port=0", "--allow-anonymous", f"--workers={num_workers}"]
    command = [sys.executable, "-m", "frontend", "api", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listening = next(line for line in process.stderr if " listens on " in line)
        port = listening.rpartition(":")[2].strip()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=10) as answer:
                assert answer.status == 200
        finally:
            process.terminate()


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server")
    command = [sys.executable, "-m", "frontend", "api", "--port=0", f"--tls-cert={cert}", f"--tls-key={key}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listening = next(line for line in process.stderr if " listens on " in line)
        url = listening.rpartition(" listens on ")[2].strip()
        context = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"{url}/health/live", timeout=10, context=context) as answer:
            assert (url[:8], answer.status) == ("https://", 200)
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_client_that_begins_no_tls_handshake_is_cut_as_one_that_sends_no_head(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server")
    run = "import frontend.connections.runner as r; r.HEADER_TIMEOUT_S = 0.05\n" + RUN
    run = run.replace("Settings(", f"Settings(tls_cert={cert!r}, tls_key={key!r}, ")
    with subprocess.Popen([sys.executable, "-c", run, "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listening = next(line for line in process.stderr if " listens on " in line)
        try:
            with socket.create_connection(("127.0.0.1", int(listening.rpartition(":")[2])), timeout=10) as silent:
                assert silent.recv(1) == b""
        finally:
            process.kill()


def test_the_operations_port_shows_the_certificate_and_asks_for_none(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server")
    tls = [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-client-ca={cert}"]
    port = free_port()
    command = [sys.executable, "-m", "frontend", "api", "--port=0", f"--admin-port={port}", *tls]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert next(line for line in process.stderr if f"has its operations on https://127.0.0.1:{port}" in line)
        context = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/health/live", timeout=10, context=context) as answer:
            assert answer.status == 200
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_certificate_of_no_use_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "frontend", "api", "--tls-cert=/nowhere", "--tls-key=/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error: --tls-cert='/nowhere': No such file or directory\n")
