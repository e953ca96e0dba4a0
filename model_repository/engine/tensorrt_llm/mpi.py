"""The environment in which MPI starts TensorRT-LLM's worker processes, also for one GPU."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import MutableMapping

from model_repository.engine.tensorrt_llm.role import RoleKind, role_from_environment

# Open MPI 5.0.11 starts no process on a host with a longer name; only the part before the first dot counts.
_MAX_NAME_LENGTH = 32


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set the variables that TensorRT-LLM and MPI read when they are imported, as they are for this process."""
    environment.setdefault("TRTLLM_NO_USAGE_STATS", "1")  # releases after 1.2 would report their use to NVIDIA
    prepare_mpi(environment, socket.gethostname(), is_root=os.geteuid() == 0)


def prepare_mpi(environment: MutableMapping[str, str], host_name: str, *, is_root: bool) -> None:
    """Let this process start workers as root and on a host with a long name, such as a pod. Set values stay.

    MPI reads the variables when it is imported, which TensorRT-LLM does. If a launcher has started the ranks, it has
    prepared their environment.
    """
    if role_from_environment(environment).kind is not RoleKind.ALONE:
        return
    name = host_name.partition(".")[0]
    if len(name) > _MAX_NAME_LENGTH:
        environment.setdefault("PMIX_HOSTNAME", f"n-{hashlib.sha256(name.encode()).hexdigest()[:12]}")
    if is_root:  # Open MPI 5 no longer reads the OMPI_ALLOW_RUN_AS_ROOT of release 4
        environment.setdefault("PRTE_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
