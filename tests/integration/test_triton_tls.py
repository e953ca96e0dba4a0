"""A real tritonserver with mutual TLS, and each command of ours that connects to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frontend.launcher.launcher import Launcher
from frontend.settings import Settings
from tests.frontend.connections import self_signed
from tests.integration.api import COMPLETIONS, Api
from tests.integration.conftest import running_stack
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import PACED_MODEL, endpoint_of
from tests.launching import environment_with_key
from tests.waiting import wait_until

NAME = "localhost"  # the certificate's only name; it holds no address
REQUEST = {"model": PACED_MODEL, "prompt": "x", "max_tokens": 3}

type Files = dict[str, str]  # by the setting that names it


def make_files(folder: Path, name: str, names: str = f"DNS:{NAME}") -> Files:
    """Make a self-signed certificate that all sides share."""
    cert, key = self_signed.make(folder, name, names)
    return {"triton_tls_ca": cert, "triton_tls_cert": cert, "triton_tls_key": key}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def files(folder: Path) -> Files:
    """The certificate that Triton shows, and that it demands of its clients."""
    return make_files(folder, "conch")


@pytest.fixture(scope="module")
def launcher(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Launcher]:
    """The launcher of a server whose Triton uses TLS."""
    frontend = Settings(triton_tls_name=NAME, **files)  # type: ignore[arg-type]
    with running_stack(paced_repository, tmp_path_factory, frontend) as stack:
        yield stack.launcher


def options(settings: Files) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def asked(launcher: Launcher, command: str, *arguments: str) -> tuple[int, str]:
    """Return the status and the output of a command that connects to the launcher's Triton."""
    words = [sys.executable, "-m", "frontend", command, f"--triton={endpoint_of(launcher)}", *arguments]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment_with_key())
    return done.returncode, done.stdout


def by_name(launcher: Launcher) -> str:
    """Return the endpoint by its DNS name."""
    return f"dns:{NAME}:{launcher.triton_ports.grpc}"


def is_ready(frontend: Frontend) -> bool:
    return frontend.readiness()[0] == 200


def why_not_reached(launcher: Launcher, folder: Path, settings: Files) -> str:
    """Return the log line of a frontend that cannot reach Triton; it answers health checks all the same."""

    def is_up(frontend: Frontend) -> bool:
        return frontend.readiness()[0] == 503 and f"{endpoint_of(launcher)} is not reached" in frontend.log

    with frontend_of([by_name(launcher)], folder, *options(settings), is_up=is_up) as frontend:
        answer = Api(frontend.url).post(COMPLETIONS, REQUEST)
        assert answer.status == 503
        assert answer.error["code"] == "triton_unreachable"
        return next(line for line in frontend.log.splitlines() if f"{endpoint_of(launcher)} is not reached" in line)


def test_a_client_with_a_certificate_is_served_under_the_certificates_name(
    launcher: Launcher, files: Files, tmp_path: Path
) -> None:
    assert Api(launcher.url).post(COMPLETIONS, REQUEST).choice["finish_reason"] == "length", "serve"
    with frontend_of([by_name(launcher)], tmp_path, *options(files), is_up=is_ready) as frontend:
        assert Api(frontend.url).post(COMPLETIONS, REQUEST).choice["finish_reason"] == "length", "api"
    named = [*options(files), f"--triton-tls-name={NAME}"]
    assert asked(launcher, "health", "--generate", *named)[0] == 0
    assert asked(launcher, "drain", "--notice-s=0", *named) == (
        0,
        f"ok: nothing runs at {endpoint_of(launcher)} any more\n",
    )
    assert Api(launcher.url).post(COMPLETIONS, REQUEST).error["code"] == "model_not_ready"
    assert asked(launcher, "drain", "--undo", *named) == (0, f"ok: {endpoint_of(launcher)} takes requests again\n")
    wait_until(lambda: Api(launcher.url).post(COMPLETIONS, REQUEST).status == 200, "it serves again")


def test_a_refused_connection_says_why(launcher: Launcher, files: Files, tmp_path: Path) -> None:
    without_certificate = {"triton_tls_ca": files["triton_tls_ca"]}
    stranger = files | {"triton_tls_ca": self_signed.make(tmp_path, "stranger")[0]}
    for settings, how, why in (
        (files | {"triton_tls_name": "other"}, "over TLS: ", "Hostname Verification Check failed"),
        (stranger, "over TLS: ", "CERTIFICATE_VERIFY_FAILED"),
        (without_certificate, "over TLS, without a certificate of the frontend's: ", "Socket closed"),
        ({}, "without TLS: ", "Socket closed"),
    ):
        line = why_not_reached(launcher, tmp_path, settings)
        assert how in line
        assert why in line
        status, said = asked(launcher, "health", *options({"triton_tls_name": NAME} | settings if settings else {}))
        assert status == 1
        assert why in said
    assert asked(launcher, "health", *options(files))[0] == 1, "the certificate is for the name, not for the address"


def test_new_certificates_work_without_a_restart_of_the_frontend(
    launcher: Launcher, files: Files, folder: Path, tmp_path: Path
) -> None:
    with frontend_of([by_name(launcher)], tmp_path, *options(files), is_up=is_ready) as frontend:
        launcher.triton.kill()
        assert make_files(folder, "conch") == files, "other ones of the same names"
        launcher.start_again(launcher.triton)
        for url in (frontend.url, launcher.url):
            wait_until(lambda url=url: Api(url).post(COMPLETIONS, REQUEST).status == 200, "it is reached again")  # type: ignore[misc]
        assert "the certificates for Triton were read again" in frontend.log
