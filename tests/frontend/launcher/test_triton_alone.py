"""tritonserver as the only program of a container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontend.__main__ import main
from frontend.launcher.triton_alone import TritonSettings, alone_command
from frontend.launcher.triton_server import GrpcTls, TritonInstallation, TritonPorts
from frontend.settings import SettingsError
from tests.frontend.connections import self_signed

pytestmark = pytest.mark.usefixtures("servers")

PORTS = TritonPorts(grpc=1, metrics=3, http=2)
KEY = "0123456789abcdef" * 2
WITHOUT_KEY: dict[str, Any] = {
    "repository": Path("/r"),
    "state_dir": Path("/s"),
    "address": "::",
    "metrics_address": "fd00::1",
    "ports": PORTS,
    "exit_timeout_s": 9,
}
GOOD = TritonSettings(**WITHOUT_KEY)


def test_without_a_key_the_restricted_apis_have_a_random_key():
    installation = TritonInstallation(binary=Path("/bin/tritonserver"), environment={})

    def key_of(settings: TritonSettings) -> str:
        [option] = [word for word in alone_command(installation, settings) if "restricted-protocol" in word]
        return option.rpartition("=")[2]

    assert key_of(replace(GOOD, key="x" * 32)) == "x" * 32
    assert len({key_of(GOOD), key_of(TritonSettings(**WITHOUT_KEY)), ""}) == 3


def test_others_reach_grpc_and_metrics_but_not_http():
    command = alone_command(TritonInstallation(binary=Path("/bin/tritonserver"), environment={}), GOOD)
    # Triton writes HOST:PORT for gRPC, and its HTTP library takes an IPv6 address only with this prefix.
    assert {"--grpc-address=[::]", "--metrics-address=ipv6:fd00::1", "--http-address=127.0.0.1"} <= set(command)
    assert {"--grpc-port=1", "--http-port=2", "--metrics-port=3", "--exit-timeout-secs=9"} <= set(command)
    pings = {"--grpc-http2-min-recv-ping-interval-without-data=5000", "--grpc-keepalive-permit-without-calls=1"}
    assert pings <= set(command)  # test_grpc_client.py


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"ports": TritonPorts(grpc=1, http=0, metrics=3)}, "--http-port=0"),
        ({"exit_timeout_s": -1}, "--exit-timeout-s"),
        ({"tls": GrpcTls(cert="c", key="k")}, "--http-port=2: Triton's HTTP has no TLS"),
    ],
)
def test_a_wrong_value_is_named(changes, name):
    with pytest.raises(SettingsError, match=name):
        replace(GOOD, **changes)


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


def test_the_process_becomes_the_server(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.pbtxt").touch()
    server = tmp_path / "tritonserver"
    server.touch(0o755)
    became = []
    monkeypatch.setenv("CONCH_TRITON_KEY", KEY)
    monkeypatch.setattr("os.execve", lambda *arguments: became.append(arguments))
    cert, key = self_signed.make(tmp_path, "triton")
    cert_name, key_name = Path(cert).name, Path(key).name  # relative
    tls = [f"--tls-cert={cert_name}", f"--tls-key={key_name}", f"--tls-client-ca={cert_name}"]
    monkeypatch.chdir(tmp_path)  # it is changed, and then changed back
    main(["triton", f"--repository={tmp_path}", "--home=state", "--tritonserver=tritonserver", *tls])
    [(binary, command, environment)] = became
    assert binary == server
    assert Path.cwd() == tmp_path / "state" / "servers" / "triton" / ".triton"
    assert "--model-repository=repository" in command and Path("repository").samefile(tmp_path)
    assert {f"--grpc-server-cert={cert}", f"--grpc-server-key={key}", f"--grpc-root-cert={cert}"} <= set(command)
    assert f"--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:conch-key={KEY}" in command
    assert "PATH" in environment
