from __future__ import annotations

import signal
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

import pytest

from frontend.__main__ import main
from tests.frontend.connections.self_signed import make
from tests.launching import free_port, running

pytestmark = pytest.mark.usefixtures("servers")

API = ("api", "--port=0", "--triton=127.0.0.1:1", "--workers=1")
LOG_FROZEN = """
import gc, logging, sys
from frontend.server import run
from frontend.settings import Settings
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.exit(run(Settings(port=0), on_listening=lambda: logging.info("%d objects are frozen", gc.get_freeze_count())))
"""


def is_live(url: str, context: ssl.SSLContext | None = None) -> bool:
    with urllib.request.urlopen(f"{url}/health/live", timeout=10, context=context) as answer:
        return bool(answer.status == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, *API) as server:
        server.wait_for(" listens on ")
        assert is_live(server.url)
        server.process.send_signal(number)
        assert server.status() == 0


def test_the_garbage_collector_does_not_walk_over_modules_and_classes(tmp_path: Path) -> None:
    with running(tmp_path, "api", args=[sys.executable, "-c", LOG_FROZEN]) as server:
        server.wait_for("objects are frozen")
        assert int(server.log.split(" objects are frozen")[0].split()[-1]) > 10_000


def test_a_port_in_use_is_said_and_is_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path, *API, f"--port={port}") as server:
            assert server.status() == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in server.log and "Traceback" not in server.log


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_address_includes_those_of_ipv4(tmp_path: Path, num_workers: int) -> None:
    # The event loop opens an IPv6 socket without IPv4.
    with running(tmp_path, *API, "--host=::", "--allow-anonymous", f"--workers={num_workers}") as server:
        server.wait_for(" listens on ")
        assert is_live(f"http://127.0.0.1:{server.url.rpartition(':')[2]}")


def test_with_a_certificate_both_ports_speak_tls_and_operations_asks_for_none(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server")
    context = ssl.create_default_context(cafile=cert)
    port = free_port()
    tls = [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-client-ca={cert}", f"--admin-port={port}"]
    with running(tmp_path, *API, *tls) as server:
        server.wait_for(f"has its operations on https://127.0.0.1:{port}")
        assert is_live(f"https://127.0.0.1:{port}", context)
        context.load_cert_chain(cert, key)
        assert server.url.startswith("https://") and is_live(server.url, context)
        server.process.terminate()
        assert server.status() == 0


def test_a_client_that_begins_no_tls_handshake_is_cut_as_one_that_sends_no_head(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server")
    constants = ["frontend.server:HEADER_TIMEOUT_S=0.05"]
    with running(tmp_path, *API, f"--tls-cert={cert}", f"--tls-key={key}", constants=constants) as server:
        server.wait_for(" listens on ")
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(1) == b""


def test_a_certificate_of_no_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["api", "--tls-cert=/nowhere", "--tls-key=/nowhere"]) == 2
    assert capsys.readouterr().err == "error: --tls-cert='/nowhere': No such file or directory\n"
