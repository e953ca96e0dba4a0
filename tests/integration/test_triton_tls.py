"""A real tritonserver that wants TLS, and a certificate of whoever talks to it: each command of ours that does."""

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
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import PACED_MODEL, endpoint_of
from tests.launching import environment_with_key, launcher_settings
from tests.waiting import wait_until

NAME = "localhost"  # that the certificate is for, and not for any address
REQUEST = {"model": PACED_MODEL, "prompt": "x", "max_tokens": 3}

type Files = dict[str, str]  # by the setting that names it


def make_files(folder: Path, name: str, names: str = f"DNS:{NAME}") -> Files:
    """Make a certificate that is everybody's, and its own authority."""
    cert, key = self_signed.make(folder, name, names)
    return {"triton_tls_ca": cert, "triton_tls_cert": cert, "triton_tls_key": key}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """What the Triton shows, and asks for."""
    return make_files(tmp_path, "conch")


@pytest.fixture
def launcher(paced_repository: Path, tmp_path: Path, files: Files) -> Iterator[Launcher]:
    """A running stack."""
    frontend = Settings(stats_interval_s=0.2, triton_tls_name=NAME, **files)  # type: ignore[arg-type]
    settings = launcher_settings(paced_repository, tmp_path / "state", frontend)
    with (tmp_path / "log").open("w") as log, Launcher(settings, lambda line: print(line, file=log)) as launcher:
        launcher.start()
        launcher.wait_until_ready()
        yield launcher


def options(settings: Files) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def asked(launcher: Launcher, command: str, *arguments: str) -> tuple[int, str]:
    """Return the status of a command that asks the launcher's Triton, and what it said."""
    words = [sys.executable, "-m", "frontend", command, f"--triton={endpoint_of(launcher)}", *arguments]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment_with_key())
    return done.returncode, done.stdout


def by_name(launcher: Launcher) -> str:
    """Return the endpoint whose addresses are looked up."""
    return f"dns:{NAME}:{launcher.triton_ports.grpc}"


def is_ready(frontend: Frontend) -> bool:
    return frontend.readiness()[0] == 200


def why_not_reached(launcher: Launcher, folder: Path, settings: Files) -> str:
    """Return what a frontend logs that finds no Triton; it answers all the same."""

    def is_up(frontend: Frontend) -> bool:
        return frontend.readiness()[0] == 503 and f"{endpoint_of(launcher)} is not reached" in frontend.log

    with frontend_of([by_name(launcher)], folder, *options(settings), is_up=is_up) as frontend:
        answer = Api(frontend.url).post(COMPLETIONS, REQUEST)
        assert answer.status == 503
        assert answer.error["code"] == "triton_unreachable"
        return next(line for line in frontend.log.splitlines() if f"{endpoint_of(launcher)} is not reached" in line)


def test_who_has_a_certificate_is_let_in_and_sees_that_the_name_is_right(
    launcher: Launcher, files: Files, tmp_path: Path
) -> None:
    assert Api(launcher.url).post(COMPLETIONS, REQUEST).choice["finish_reason"] == "length", "serve"
    with frontend_of([by_name(launcher)], tmp_path, *options(files), is_up=is_ready) as frontend:
        assert Api(frontend.url).post(COMPLETIONS, REQUEST).choice["finish_reason"] == "length", "api"
    named = [*options(files), f"--triton-tls-name={NAME}"]
    assert asked(launcher, "probe", "--generate", *named)[0] == 0
    assert asked(launcher, "drain", "--notice=0", *named) == (
        0,
        f"ok: nothing runs at {endpoint_of(launcher)} any more\n",
    )


def test_who_is_not_let_in_or_finds_somebody_else_is_told_why(launcher: Launcher, files: Files, tmp_path: Path) -> None:
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
        status, said = asked(launcher, "probe", *options({"triton_tls_name": NAME} | settings if settings else {}))
        assert status == 1
        assert why in said
    assert asked(launcher, "probe", *options(files))[0] == 1, "the certificate is for the name, not for the address"


def test_new_certificates_are_taken_up_without_a_restart_of_the_frontend(
    launcher: Launcher, files: Files, tmp_path: Path
) -> None:
    with frontend_of([by_name(launcher)], tmp_path, *options(files), is_up=is_ready) as frontend:
        launcher.triton.stop(10)
        assert make_files(tmp_path, "conch") == files, "other ones of the same names"
        launcher.triton.start()
        for url in (frontend.url, launcher.url):
            wait_until(lambda url=url: Api(url).post(COMPLETIONS, REQUEST).status == 200, "it is reached again")  # type: ignore[misc]
        assert "the certificates for Triton were read again" in frontend.log
