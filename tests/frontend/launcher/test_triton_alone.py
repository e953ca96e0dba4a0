"""tritonserver as the only program of a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from frontend.__main__ import main
from tests.frontend.connections import self_signed
from tests.model_repository.arbiter.repository import parameters_of, write_models

pytestmark = pytest.mark.usefixtures("servers")

KEY = "0123456789abcdef" * 2


@pytest.fixture
def become(tmp_path, monkeypatch):
    """Run the command with a repository and a server; return the arguments with which the process becomes that."""
    write_models(tmp_path, parameters_of("model"))
    (tmp_path / "tritonserver").touch(0o755)
    became: list[Any] = []
    monkeypatch.delenv("CONCH_TRITON_KEY", raising=False)
    monkeypatch.setattr("os.execve", lambda *arguments: became.append(arguments))
    monkeypatch.chdir(tmp_path)  # it is changed, and then changed back

    def run(*options: str) -> Any:
        os.chdir(tmp_path)
        main(["triton", f"--repository={tmp_path}", "--home=state", "--tritonserver=tritonserver", *options])
        return became.pop()

    return run


def test_without_a_key_the_restricted_apis_have_a_random_key(become):
    def key() -> str:
        _, command, _ = become()
        [option] = [word for word in command if "restricted-protocol" in word]
        return option.rpartition("=")[2]

    assert len({key(), key(), ""}) == 3


def test_others_reach_grpc_and_metrics_but_not_http(become):
    options = ["--grpc-port=1", "--http-port=2", "--metrics-port=3", "--exit-timeout-s=9"]
    _, command, _ = become("--address=::", "--metrics-address=fd00::1", *options)
    # Triton writes HOST:PORT for gRPC, and its HTTP library takes an IPv6 address only with this prefix.
    assert {"--grpc-address=[::]", "--metrics-address=ipv6:fd00::1", "--http-address=127.0.0.1"} <= set(command)
    assert {"--grpc-port=1", "--http-port=2", "--metrics-port=3", "--exit-timeout-secs=9"} <= set(command)
    pings = {"--grpc-http2-min-recv-ping-interval-without-data=5000", "--grpc-keepalive-permit-without-calls=1"}
    assert pings <= set(command)  # test_grpc_client.py


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--http-port=0", "--http-port=0: must be"),
        ("--exit-timeout-s=-1", "--exit-timeout-s=-1: must not"),
        ("--http-port=2", "--http-port=2: Triton's HTTP has no TLS"),
    ],
)
def test_a_wrong_value_is_named(option, problem, tmp_path, capsys):
    cert, key = self_signed.make(tmp_path, "triton")
    assert main(["triton", "--repository=/", f"--tls-cert={cert}", f"--tls-key={key}", option]) == 2
    assert capsys.readouterr().err.startswith(f"error: {problem}")


def test_nothing_to_serve_is_one_line(tmp_path, capsys):
    assert main(["triton", "--repository", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("error: --repository=")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert=c"], "error: --tls-cert='c': --tls-cert and --tls-key go together"),
        (["--tls-client-ca=c"], "error: --tls-client-ca='c': needs --tls-cert and --tls-key"),
        (["--tls-cert=/none", "--tls-key=/none"], "error: --tls-cert='/none': No such file or directory"),
    ],
)
def test_certificates_that_cannot_be_used_are_one_line(options, message, capsys):
    assert main(["triton", "--repository=/", *options]) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_the_process_becomes_the_server(become, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCH_TRITON_KEY", KEY)
    cert, key = self_signed.make(tmp_path, "triton")
    cert_name, key_name = Path(cert).name, Path(key).name  # relative
    tls = [f"--tls-cert={cert_name}", f"--tls-key={key_name}", f"--tls-client-ca={cert_name}"]
    binary, command, environment = become(*tls)
    assert binary == tmp_path / "tritonserver"
    assert Path.cwd() == tmp_path / "state" / "servers" / "triton" / ".triton"
    assert "--model-repository=repository" in command and Path("repository").samefile(tmp_path)
    assert {f"--grpc-server-cert={cert}", f"--grpc-server-key={key}", f"--grpc-root-cert={cert}"} <= set(command)
    assert f"--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:conch-key={KEY}" in command
    assert "PATH" in environment
