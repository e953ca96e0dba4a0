"""Runs tritonserver alone, as the only program of a container; frontends run elsewhere."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontend.connections.certificates import Certificates
from frontend.launcher.checks import check_machine, check_repository
from frontend.launcher.state_lock import server_lock
from frontend.launcher.triton_server import (
    NO_TLS,
    GrpcTls,
    TritonInstallation,
    TritonPorts,
    find_triton,
    triton_command,
    triton_folder,
)
from frontend.settings import Settings, SettingsError
from model_repository.contract.tensors import KEY_VARIABLE

_SHM_PREFIX = "conch_"  # a container's shared memory is its own


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSettings:
    """The options of `triton`.

    Raises:
        SettingsError: at construction.
    """

    repository: Path
    state_dir: Path
    address: str  # gRPC's; HTTP is on loopback
    metrics_address: str
    ports: TritonPorts
    exit_timeout_s: int  # time for running requests after SIGTERM
    tls: GrpcTls = NO_TLS  # gRPC's
    key: str = field(default_factory=secrets.token_urlsafe, repr=False)  # opens the restricted APIs
    tritonserver: Path | None = None  # None: an installed one

    def __post_init__(self) -> None:
        for name, port in (("grpc", self.ports.grpc), ("http", self.ports.http), ("metrics", self.ports.metrics)):
            if port is not None and not 1 <= port <= 65535:
                raise SettingsError(f"--{name}-port={port}: must be a whole number from 1 to 65535")
        if self.ports.http is not None and self.tls.cert:
            raise SettingsError(
                f"--http-port={self.ports.http}: Triton's HTTP has no TLS, leave it out with --tls-cert"
            )
        if self.exit_timeout_s < 0:
            raise SettingsError(f"--exit-timeout-s={self.exit_timeout_s}: must not be negative")


def tls_from(settings: Settings) -> GrpcTls:
    """Return the TLS of a server from its settings.

    Raises:
        SettingsError: the files cannot be used; the error of Triton itself would name no file.
    """
    if settings.tls_cert:
        Certificates(settings)
    return GrpcTls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


def become_triton(settings: TritonSettings, environment: Mapping[str, str]) -> None:
    """Replace this process by the server, which then gets the signals and sets the exit status.

    Raises:
        LaunchError: no model, a low limit, too little shared memory, or no server that can run here.
        OSError: the server cannot be run.
    """
    check_machine()
    check_repository(settings.repository)
    with server_lock(settings.state_dir, "triton", is_shared=True) as lock:
        os.set_inheritable(lock.fileno(), True)  # the server holds it
        folder = triton_folder(Path(lock.name).parent, settings.repository)
        installation = find_triton(settings.tritonserver, folder, environment)
        environment = {**installation.environment, KEY_VARIABLE: settings.key}
        command = alone_command(installation, settings)
        os.chdir(folder)  # the command was made of paths from the former folder
        os.execve(installation.binary, command, environment)


def alone_command(installation: TritonInstallation, settings: TritonSettings) -> list[str]:
    """Return the command line of a server for frontends on other machines."""
    return triton_command(
        installation,
        settings.ports,
        _SHM_PREFIX,
        key=settings.key,
        tls=settings.tls,
        address=settings.address,
        metrics_address=settings.metrics_address,
        exit_timeout_s=settings.exit_timeout_s,
    )
