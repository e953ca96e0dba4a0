from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

RUN = """
import logging, sys
from frontend.server import run
from frontend.settings import Settings
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.exit(run(Settings(port=int(sys.argv[1]), triton_endpoints=("127.0.0.1:1",))))
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


def test_a_port_in_use_is_said_and_is_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([sys.executable, "-c", RUN, str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr
