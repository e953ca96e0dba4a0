"""Runs tritonserver alone, as the only program of a container; a frontend elsewhere follows it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontend.connections.certificates import Certificates
from frontend.launcher.checks import check_limits, check_repository, check_shared_memory, free_shared_memory_bytes
from frontend.launcher.triton_server import (
    NO_TLS,
    GrpcTls,
    TritonInstallation,
    TritonPorts,
    find_triton,
    triton_command,
)
from frontend.settings import Settings, SettingsError
from model_repository.contract.tensors import KEY_VARIABLE

_SHM_PREFIX = "conch_"  # a container's shared memory is its own


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSettings:
    """What `triton` is told.

    Raises:
        SettingsError: at construction.
    """

    repository: Path
    state_dir: Path
    address: str  # of gRPC and metrics; HTTP is for this machine alone
    ports: TritonPorts
    exit_timeout_s: int  # for requests under way, after it was asked to end
    tls: GrpcTls = NO_TLS  # of gRPC
    key: str = field(default_factory=secrets.token_urlsafe, repr=False)  # to the restricted APIs
    tritonserver: Path | None = None  # None: one is looked for

    def __post_init__(self) -> None:
        for name, port in (("grpc", self.ports.grpc), ("http", self.ports.http), ("metrics", self.ports.metrics)):
            if port is not None and not 1 <= port <= 65535:
                raise SettingsError(f"--{name}-port={port}: must be a whole number from 1 to 65535")
        if self.ports.http is not None and self.tls.cert:
            raise SettingsError(
                f"--http-port={self.ports.http}: Triton's HTTP knows no TLS, leave it out with --tls-cert"
            )
        if self.exit_timeout_s < 0:
            raise SettingsError(f"--exit-timeout-s={self.exit_timeout_s}: must not be negative")


def tls_from(settings: Settings) -> GrpcTls:
    """Return what the options for a server's TLS say.

    Raises:
        SettingsError: the files are of no use; what Triton itself would say of them names none.
    """
    if settings.tls_cert:
        Certificates(settings)
    return GrpcTls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


def become_triton(settings: TritonSettings, environment: Mapping[str, str]) -> None:
    """Replace this process by the server, so that signals and the exit status are its own.

    Raises:
        LaunchError: there is nothing to serve, a limit or shared memory is too small, or no server that can run here.
        OSError: the server cannot be run.
    """
    check_limits()
    check_repository(settings.repository)
    check_shared_memory(free_shared_memory_bytes())
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    installation = find_triton(settings.tritonserver, settings.state_dir.resolve(), environment)
    environment = {**installation.environment, KEY_VARIABLE: settings.key}
    os.execve(installation.binary, alone_command(installation, settings), environment)


def alone_command(installation: TritonInstallation, settings: TritonSettings) -> list[str]:
    """Return the command line of a server that frontends elsewhere may reach."""
    return triton_command(
        installation,
        settings.repository.resolve(),
        settings.ports,
        _SHM_PREFIX,
        key=settings.key,
        tls=settings.tls,
        address=settings.address,
        exit_timeout_s=settings.exit_timeout_s,
    )
