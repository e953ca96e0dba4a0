"""The role of a process among the ranks of a model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from model_repository.engine.tensorrt_llm.role import Role, RoleKind, role_from_environment


@pytest.mark.parametrize(
    ("environment", "role"),
    [
        ({}, Role(RoleKind.ALONE)),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, Role(RoleKind.ALONE)),
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "0"}, Role(RoleKind.LEADER, 0, 16)),
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9"}, Role(RoleKind.WORKER, 9, 16)),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, Role(RoleKind.WORKER, 1, 2)),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, Role(RoleKind.LEADER, 0, 2)),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "1"}, Role(RoleKind.WORKER, 1, 2)),
        ({"SLURM_STEP_NUM_TASKS": "2"}, Role(RoleKind.ALONE)),  # srun --mpi=none
        ({"TLLM_SPAWN_PROXY_PROCESS": "1"}, Role(RoleKind.LAUNCHED)),
        # Some launchers set variables of their own, too.
        ({"TLLM_SPAWN_PROXY_PROCESS": "1", "PMI_SIZE": "2", "PMI_RANK": "0"}, Role(RoleKind.LAUNCHED)),
    ],
)
def test_the_environment_decides_the_role(environment: Mapping[str, str], role: Role) -> None:
    assert role_from_environment(environment) == role
