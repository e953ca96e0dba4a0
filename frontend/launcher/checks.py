"""Checks before a server is started: the repository, limits of the machine, ports."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from frontend.launcher.errors import LaunchError
from frontend.settings import SettingsError
from model_repository.contract.tensors import ARBITER, LOADERS, ensemble_of_stage
from model_repository.system.llama_build import UnusableBuild, usable_build

SHARED_MEMORY = Path("/dev/shm")

_TEMPORARY = "/tmp"  # a constant of Triton's Python backend
_MIN_SHM_BYTES = 64 * 2**20  # the default of a container, which is too small
# Each limit with its name and unit in the shell, and the need of a small model: Triton alone has 70 files open and
# reserves 2.1 GB of addresses; connections of clients are files too.
_LIMITS = (
    (resource.RLIMIT_NOFILE, "ulimit -n (open files)", 1, 256),
    (resource.RLIMIT_AS, "ulimit -v (KiB of addresses)", 1024, 3 * 2**20),
)


class PortChoice(NamedTuple):
    """A port, and the flag that sets it; 0 is any free port. One that nobody chose may be another if it is in use."""

    flag: str
    host: str
    port: int
    is_chosen: bool = True


def free_ports(choices: Iterable[PortChoice]) -> dict[str, int]:
    """Return a free port for each flag.

    Raises:
        LaunchError: a chosen port is in use.
    """
    chosen_first = sorted(choices, key=lambda choice: (choice.port == 0, not choice.is_chosen))
    with ExitStack() as stack:
        return {choice.flag: stack.enter_context(_bound(choice)) for choice in chosen_first}


def check_repository(repository: Path) -> None:
    """Check that a repository has a model, and that this version has rendered it.

    Raises:
        LaunchError: it is missing, has no model, or another version has rendered it.
    """
    if not repository.is_dir():
        raise LaunchError(f"--repository={repository}: no such folder; `conch serve demo` builds the demo model")
    if not any(ensemble_of_stage(path.parent.name) == path.parent.name for path in repository.glob("*/config.pbtxt")):
        raise LaunchError(f"--repository={repository}: no model in it; `conch serve demo` builds one")
    if (stage := stage_of_another_version(repository)) is not None:
        rule = f"another version of Conch has rendered it: `conch render --repository {repository}` renders it again"
        raise LaunchError(f"--repository={repository}: {stage}: {rule}")


def stage_of_another_version(repository: Path) -> str | None:
    """Return a stage of a repository that another version of Conch has rendered; None: this version rendered all."""
    for path in sorted(repository.glob("*__*/1/model.py")):
        stage = path.parents[1].name.rpartition("__")[2].rstrip("12")  # of several loaders
        if path.read_bytes() != resources.files("model_repository").joinpath(stage, "1", "model.py").read_bytes():
            return path.parents[1].name
    return next((name for name in (ARBITER, *LOADERS) if not (repository / name).is_dir()), None)


def check_home(home: Path) -> None:
    """Check that the folder of artifacts and servers can be written, or made.

    Raises:
        SettingsError: names the folder in the way.
    """
    path = home.absolute()
    existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        rule = f"{existing} is not a folder that you may write to: name another place by this option, or CONCH_HOME"
        raise SettingsError(f"--home={home}: {rule}")


def check_machine() -> None:
    """Check that Triton has the limits of the shell, the temporary folder and the shared memory that it needs.

    Raises:
        LaunchError: one of these does not suffice; the tensors of Triton's Python backend are in shared memory.
    """
    for limit, name, unit, needed in _LIMITS:
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY and allowed < needed * unit:
            raise LaunchError(
                f"{name} is {allowed // unit}: Triton needs at least {needed}, and more for a large model"
            )
    if not os.access(_TEMPORARY, os.W_OK):
        rule = "Triton makes files there, whatever TMPDIR says: make it writable, or mount a folder there"
        raise LaunchError(f"{_TEMPORARY} cannot be written: {rule}")
    status = os.statvfs(SHARED_MEMORY)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes <= _MIN_SHM_BYTES:
        raise LaunchError(
            f"{SHARED_MEMORY} has {free_bytes // 2**20} MiB free: Triton's Python backend needs more than "
            f"{_MIN_SHM_BYTES // 2**20} MiB (docker run --shm-size=1g; Kubernetes: an emptyDir of medium Memory)"
        )


def check_llama_build() -> None:
    """Check that the engine stages can import llama.cpp, if it is installed.

    Raises:
        LaunchError: two builds are installed, or a library of a graphics card's driver is missing.
    """
    try:
        usable_build()
    except UnusableBuild as exc:
        raise LaunchError(str(exc)) from exc


@contextmanager
def _bound(choice: PortChoice) -> Iterator[int]:
    """Hold the port, so that no other choice gets the same port."""
    family = socket.AF_INET6 if ":" in choice.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a lingering connection does not hold a port
        try:
            try:
                listener.bind((choice.host, choice.port))
            except OSError:
                if choice.is_chosen:
                    raise
                listener.bind((choice.host, 0))
            listener.listen()
        except OSError as exc:
            raise LaunchError(
                f"cannot listen on {choice.host} port {choice.port}: {exc.strerror or exc}; "
                f"{choice.flag} chooses another port"
            ) from exc
        yield listener.getsockname()[1]
