"""Runs tritonserver alone, as the only program of a container; frontends run elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from frontend.connections.certificates import Certificates
from frontend.launcher.checks import check_home, check_llama_build, check_machine, check_repository
from frontend.launcher.state_lock import server_lock
from frontend.launcher.triton_server import GrpcTls, TritonOptions, find_triton, triton_command, triton_folder
from frontend.settings import Settings, SettingsError
from model_repository.arbiter.start import Start
from model_repository.contract.arbiter import MODEL_MEMORY_VARIABLE
from model_repository.contract.tensors import KEY_VARIABLE


def tls_from(settings: Settings) -> GrpcTls:
    """Return the TLS of a server from its settings.

    Raises:
        SettingsError: the files cannot be used; the error of Triton itself would name no file.
    """
    if settings.tls_cert:
        Certificates(settings)
    return GrpcTls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


def become_triton(
    repository: Path,
    home: Path,
    tritonserver: Path | None,
    options: TritonOptions,
    environment: Mapping[str, str],
    memory_bytes: int | None,
) -> None:
    """Replace this process by the server, which then gets the signals and sets the exit status.

    Args:
        tritonserver: None: an installed one.
        memory_bytes: bound on the memory of all models together; None: that of the machine.

    Raises:
        SettingsError: an option breaks a rule, or the home cannot be written.
        LaunchError: no model, a low limit, too little shared memory, or no server that can run here.
        OSError: the server cannot be run.
    """
    _check(options)
    check_home(home)
    check_machine()
    check_llama_build()
    check_repository(repository)
    with server_lock(home, "triton", is_shared=True) as lock:
        os.set_inheritable(lock.fileno(), True)  # the server holds it
        folder = triton_folder(Path(lock.name).parent, repository)
        installation = find_triton(tritonserver, folder, environment)
        start = Start.of(repository, memory_bytes)
        environment = {
            **installation.environment,
            KEY_VARIABLE: options.key,
            MODEL_MEMORY_VARIABLE: str(start.total_bytes),
        }
        options = replace(options, models=start.names)
        command = triton_command(installation, options)
        os.chdir(folder)  # the command was made of paths from the former folder
        os.execve(installation.binary, command, environment)


def _check(options: TritonOptions) -> None:
    ports = options.ports
    for name, port in (("grpc", ports.grpc), ("http", ports.http), ("metrics", ports.metrics)):
        if port is not None and not 1 <= port <= 65535:
            raise SettingsError(f"--{name}-port={port}: must be a whole number from 1 to 65535")
    if ports.http is not None and options.tls.cert:
        raise SettingsError(f"--http-port={ports.http}: Triton's HTTP has no TLS, leave it out with --tls-cert")
    if options.exit_timeout_s < 0:
        raise SettingsError(f"--exit-timeout-s={options.exit_timeout_s}: must not be negative")
