"""Finds a tritonserver, and makes its command line.

A full Triton (of NVIDIA's image, or of the option) is complete. The wheel nvidia-pytriton has a bare server: it needs
libraries from another folder of the wheel, and a backend directory with the Python backend and the stub for this
Python.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontend.launcher.errors import LaunchError
from frontend.launcher.libpython import libpython_dir, why_unusable
from frontend.settings import Settings
from frontend.triton import restricted
from model_repository.system.machine import installed_version

ADDRESS = "127.0.0.1"  # Triton's: its APIs have no authentication
DEFAULT_FRONTEND = Settings(port=8000)  # defaults of `serve`
FULL_TRITON = Path("/opt/tritonserver/bin/tritonserver")

_REPOSITORY, _BACKENDS = "repository", "backends"  # subfolders of Triton's folder
_CODE = str(Path(__file__).parents[2])  # the folder of our packages
_STUB = "triton_python_backend_stub"
_MIN_PING_INTERVAL_MS = 5000
_EXIT_TIMEOUT_S = 3  # unloading takes 2; after a stage was killed, Triton waits for the whole time


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonInstallation:
    """A server, and its environment here."""

    binary: Path
    environment: Mapping[str, str]  # the whole environment
    backend_dir: Path | None = None  # None: the server's own; may be relative to Triton's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPorts:
    """Where Triton listens."""

    grpc: int
    metrics: int
    http: int | None = None  # None: closed


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcTls:
    """The TLS of Triton's gRPC port: PEM files, which Triton reads once."""

    cert: str = ""  # empty: no TLS
    key: str = ""
    client_ca: str = ""  # the authorities of clients' certificates; empty: clients need none

    def flags(self) -> dict[str, str]:
        """Return the server's options."""
        if not self.cert:
            return {}
        kind = "grpc-use-ssl-mutual" if self.client_ca else "grpc-use-ssl"
        files = {"grpc-server-cert": self.cert, "grpc-server-key": self.key, "grpc-root-cert": self.client_ca}
        return {kind: "true"} | {name: os.path.abspath(file) for name, file in files.items() if file}


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """The options of a server's command line."""

    ports: TritonPorts
    key: str = field(repr=False)  # opens the restricted APIs
    models: tuple[str, ...] = ("*",)  # what is loaded at the start, by Triton's names; *: all
    shm_prefix: str = "conch_"  # names of shared memory begin with it; a container's shared memory is its own
    is_partial: bool = False  # serve without the models that cannot be loaded; else one of them ends the server
    tls: GrpcTls = field(default_factory=GrpcTls)  # gRPC's
    address: str = ADDRESS  # gRPC's, where both 0.0.0.0 and :: are every address; HTTP is on loopback
    metrics_address: str = ADDRESS  # :: is every IPv6 address
    exit_timeout_s: int = _EXIT_TIMEOUT_S  # time for running requests after SIGTERM


def triton_folder(state_dir: Path, repository: Path) -> Path:
    """Return the folder that Triton runs in, made anew. Other users cannot open it.

    The Python of its stages imports from the current folder first. And Triton pastes the paths of stages into a shell:
    they are relative to this folder, so the folders above may have any name.
    """
    folder = state_dir.resolve() / ".triton"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    (folder / _REPOSITORY).symlink_to(repository.resolve())
    return folder


def find_triton(
    named: Path | None, folder: Path, environment: Mapping[str, str], *, full: Path = FULL_TRITON
) -> TritonInstallation:
    """Return the named server, else a full Triton, else the wheel's.

    Args:
        folder: the folder that the server will run in; the backend of the wheel's is linked there.
        environment: the environment of the launcher.
        full: the path of the server in NVIDIA's images.

    Raises:
        LaunchError: no server, or a server that cannot run with this Python.
    """
    for source in (sys.prefix, _CODE):
        if not source.isascii():
            rule = "Triton's Python imports nothing from a path with a letter outside ASCII: move it, and install again"
            raise LaunchError(f"{source}: {rule}")
    environment = _common_environment(environment)
    if named is not None:
        if not os.access(named, os.X_OK) or named.is_dir():
            raise LaunchError(f"--tritonserver={named}: expected a program that can be run")
        return _full_installation(named, environment)
    if found := shutil.which("tritonserver", path=environment.get("PATH", "")):
        return _full_installation(Path(found), environment)
    if os.access(full, os.X_OK):
        return _full_installation(full, environment)
    return _wheel_installation(folder, environment)


def triton_command(installation: TritonInstallation, options: TritonOptions) -> list[str]:
    """Return the command line."""
    address, metrics_address = options.address, options.metrics_address
    flags: dict[str, object] = {
        "model-repository": _REPOSITORY,
        "model-control-mode": "explicit",  # a model can be loaded again after its process was killed
        "exit-on-error": "false" if options.is_partial else "true",
        "exit-timeout-secs": options.exit_timeout_s,
        "grpc-address": f"[{address}]" if ":" in address else address,
        "grpc-port": options.ports.grpc,
        # Clients and balancers ping an idle connection every 10 s; Triton would close it at the third ping.
        "grpc-http2-min-recv-ping-interval-without-data": _MIN_PING_INTERVAL_MS,
        "grpc-keepalive-permit-without-calls": 1,
        "metrics-address": f"ipv6:{metrics_address}" if ":" in metrics_address else metrics_address,
        "metrics-port": options.ports.metrics,
        "backend-config": f"python,shm-region-prefix-name={options.shm_prefix}",
        "grpc-restricted-protocol": f"{restricted.APIS}:{restricted.HEADER}={options.key}",
        "allow-http": "false",
        **options.tls.flags(),
    }
    if options.ports.http is not None:
        flags |= {
            "allow-http": "true",
            "http-address": ADDRESS,
            "http-port": options.ports.http,
            "http-restricted-api": flags["grpc-restricted-protocol"],
        }
    if installation.backend_dir is not None:
        flags["backend-directory"] = installation.backend_dir
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += [f"--load-model={name}" for name in options.models]
    return [str(installation.binary), *words, "--disable-auto-complete-config"]  # the rendered ones are complete


def _common_environment(environment: Mapping[str, str]) -> dict[str, str]:
    # With this variable of Vertex AI, Triton would close gRPC, and open HTTP on every address without a key.
    common = {name: value for name, value in environment.items() if name != "AIP_MODE"}
    if sys.prefix != sys.base_prefix:  # the stages' Python is the one whose folder comes first
        common["PATH"] = _prepended(Path(sys.prefix, "bin"), environment.get("PATH"))
    return common


def _full_installation(binary: Path, environment: Mapping[str, str]) -> TritonInstallation:
    """Return a server in a tree of its own; its backends are two folders up."""
    backends = binary.resolve().parent.parent / "backends"
    return TritonInstallation(
        binary=binary.absolute(), environment=environment, backend_dir=backends if backends.is_dir() else None
    )


def _wheel_installation(folder: Path, environment: Mapping[str, str]) -> TritonInstallation:
    if reason := why_unusable():
        raise LaunchError(f"{sys.executable}: {reason}, and the server of nvidia-pytriton needs it")
    server = _wheel_folder()
    numpy = installed_version("numpy")
    if numpy is not None and int(numpy.partition(".")[0]) > 1:  # its stub reads numpy 1's structures: a text aborts it
        raise LaunchError(f"numpy {numpy}: the server of nvidia-pytriton needs a numpy below 2")
    libraries = [server.parents[1] / "nvidia_pytriton.libs", libpython_dir()]
    path = environment.get("LD_LIBRARY_PATH")
    for library in reversed([library for library in libraries if library is not None]):
        path = _prepended(library, path)
    _link_backend(server, folder / _BACKENDS / "python")
    return TritonInstallation(
        binary=server / "bin" / "tritonserver",
        environment={**environment, "LD_LIBRARY_PATH": path or ""},
        backend_dir=Path(_BACKENDS),
    )


def _wheel_folder() -> Path:
    """Return the folder of the server in the wheel, without an import of the wheel."""
    spec = importlib.util.find_spec("pytriton")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location, "tritonserver")
        if (folder / "bin" / "tritonserver").is_file():
            return folder
    raise LaunchError(
        "no tritonserver: neither on PATH nor in /opt/tritonserver/bin, and the package nvidia-pytriton, "
        "which brings one for the CPU, is not installed (in a checkout: pip install '.[cpu]'); "
        "--tritonserver=PATH names another"
    )


def _link_backend(server: Path, target: Path) -> None:
    """Link the Python backend and the stub for this Python into one folder, which the server needs."""
    stub = server / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / _STUB
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for source in (*(server / "backends" / "python").iterdir(), stub):
        if source.is_file():
            (target / source.name).symlink_to(source)


def _prepended(folder: Path, path: str | None) -> str:
    return f"{folder}:{path}" if path else str(folder)
