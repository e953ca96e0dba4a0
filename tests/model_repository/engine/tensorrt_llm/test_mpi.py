"""Workers that the real Open MPI 5 starts, and the environment that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.engine.tensorrt_llm.mpi import prepare_mpi
from tests.another_machine import needs_root
from tests.model_repository.engine.tensorrt_llm.mpi_worker import ALLOWED, BYTE_TABLE
from tests.tensorrt_llm_artifact import DOUBLES

ROOT = Path(__file__).parents[4]
POD = "conch-gpu-llama3-3-70b-7d9f8b6c5d-x2k4q"
_START_S = 120.0  # a start takes two seconds of a quiet machine


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("host_name", ["", pytest.param(POD, marks=needs_root())])
def test_a_worker_starts_and_edits_logits_as_root_and_in_a_pod_with_a_long_name(host_name: str, tmp_path: Path) -> None:
    """Open MPI 5 answered MPI_ERR_UNKNOWN to both, so the PyTorch backend never started."""
    save_byte_table(tmp_path / FILE_NAME, BYTE_TABLE)
    (tmp_path / "torch").symlink_to(DOUBLES / "torch")  # alone: the MPI beside it is a double, too
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.model_repository.engine.tensorrt_llm.mpi_worker",
            tmp_path / FILE_NAME,
            host_name,
        ],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_S,
    )
    assert (done.stdout, done.returncode) == (f"{[ALLOWED]}\n", 0), done.stderr


@pytest.mark.parametrize(
    ("host_name", "is_replaced"), [("h" * 32, False), ("h" * 33, True), ("h" * 32 + ".example.com", False), (POD, True)]
)
def test_only_a_long_name_is_replaced(host_name: str, is_replaced: bool) -> None:
    environment: dict[str, str] = {}
    prepare_mpi(environment, host_name, is_root=False)
    assert list(environment) == ["PMIX_HOSTNAME"] * is_replaced
    assert all(len(name) <= 32 for name in environment.values())


def test_two_hosts_keep_two_names() -> None:
    environments: list[dict[str, str]] = [{}, {}]
    for environment, last in zip(environments, "ab", strict=True):
        prepare_mpi(environment, POD + last, is_root=False)
    assert environments[0] != environments[1]


def test_variables_of_the_user_and_of_a_launcher_stay() -> None:
    own = {"PMIX_HOSTNAME": "mine", "PRTE_ALLOW_RUN_AS_ROOT": "0", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "0"}
    environment = dict(own)
    prepare_mpi(environment, POD, is_root=True)
    assert environment == own
    launched = {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "3"}
    environment = dict(launched)
    prepare_mpi(environment, POD, is_root=True)
    assert environment == launched
