"""The frontend and a real tritonserver that wants TLS, and a certificate of whoever talks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frontend.serve.launcher import Launcher, LauncherSettings
from frontend.settings import Settings
from tests.frontend.connections import self_signed
from tests.integration.api import COMPLETIONS, Api
from tests.integration.stack import PACED_MODEL, endpoint_of


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The option of each file that the frontend needs: one certificate is everybody's, and its own authority."""
    cert, key = self_signed.make(tmp_path, "conch")
    return {"--triton-tls-ca": cert, "--triton-tls-cert": cert, "--triton-tls-key": key}


@pytest.fixture
def launcher(paced_repository: Path, tmp_path: Path, files: dict[str, str]) -> Iterator[Launcher]:
    """A running stack, whose parts were told of the certificate besides what a launcher tells them."""
    settings = LauncherSettings(
        repository=paced_repository,
        state_dir=tmp_path / "state",
        environment=os.environ,
        frontend=Settings(port=0),
        triton_grpc_port=0,
        triton_http_port=0,
        triton_metrics_port=0,
    )
    with (tmp_path / "log").open("w") as log, Launcher(settings, lambda line: print(line, file=log)) as launcher:
        cert, key = files["--triton-tls-ca"], files["--triton-tls-key"]
        launcher.triton.command += (
            "--grpc-use-ssl-mutual=true",
            f"--grpc-server-cert={cert}",
            f"--grpc-server-key={key}",
            f"--grpc-root-cert={cert}",
        )
        launcher.frontend.command += options(files)
        launcher.start()
        launcher.wait_until_ready()
        yield launcher


def options(files: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={path}" for name, path in files.items())


def probed(launcher: Launcher, *arguments: str) -> int:
    """Return the status of a probe of the launcher's Triton."""
    command = [sys.executable, "-m", "frontend", "probe", f"--triton={endpoint_of(launcher)}", *arguments]
    return subprocess.run(command, check=False, capture_output=True).returncode


def test_frontend_and_probe_talk_to_it_and_others_do_not(launcher: Launcher, files: dict[str, str]) -> None:
    answer = Api(launcher.url).post(COMPLETIONS, {"model": PACED_MODEL, "prompt": "x", "max_tokens": 3})
    assert answer.choice["finish_reason"] == "length"
    assert probed(launcher, *options(files)) == 0
    without_certificate = {name: path for name, path in files.items() if name == "--triton-tls-ca"}
    assert probed(launcher, *options(without_certificate), "--deadline=2") == 1
    assert probed(launcher, "--deadline=2") == 1
