"""The role of this process among the ranks of a model on several GPUs or nodes, by its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# Set by trtllm-llmapi-launch, which runs the other ranks in worker processes and removes MPI's own variables.
_LAUNCHED = "TLLM_SPAWN_PROXY_PROCESS"
# Open MPI's mpirun, as in NVIDIA's images; the PMI of MPICH and Slurm; Slurm's PMIx, which has only the rank.
_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
)


class RoleKind(StrEnum):
    """The starter of the other ranks, and whether this process serves."""

    ALONE = "alone"  # TensorRT-LLM itself starts a worker for each further GPU
    LAUNCHED = "launched"  # trtllm-llmapi-launch has started them, on all nodes; TensorRT-LLM finds them
    LEADER = "leader"  # mpirun has started them: this process is rank 0, serves, and orders their work
    WORKER = "worker"  # mpirun has started this process: it works for rank 0 and serves nothing


@dataclass(frozen=True, slots=True)
class Role:
    kind: RoleKind
    rank: int = 0
    num_ranks: int = 1


def role_from_environment(environment: Mapping[str, str]) -> Role:
    """Return this process's role, as NVIDIA's llmapi model for Triton and trtllm-llmapi-launch determine it."""
    if environment.get(_LAUNCHED) == "1":
        return Role(RoleKind.LAUNCHED)
    for size_name, rank_name in _MPI_VARIABLES:
        if rank_name not in environment:  # Slurm sets the sizes without MPI, too
            continue
        num_ranks, rank = int(environment.get(size_name, "1")), int(environment[rank_name])
        if num_ranks > 1:
            return Role(RoleKind.WORKER if rank else RoleKind.LEADER, rank, num_ranks)
    return Role(RoleKind.ALONE)
