"""Builds for several nodes: by one process, and by an MPI job."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from build_engines import artifact
from build_engines.errors import BuildError
from build_engines.tensorrt_llm.mpi import MpiJob
from build_engines.tensorrt_llm.tool import ToolRun
from tests.build_engines.tensorrt_llm.builder import H100, Builder
from tests.build_engines.tensorrt_llm.conftest import Here
from tests.build_engines.tensorrt_llm.tiny_model import write_catalog, write_tiny_checkpoint


def test_each_process_compiles_its_share_and_the_first_one_seals(tmp_path: Path) -> None:
    builder = Builder.make(tmp_path, num_gpus=4)
    variables = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "job.1"}
    processes = [builder.start(**variables, OMPI_COMM_WORLD_RANK=rank) for rank in ("0", "1")]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (folder,) = builder.artifacts()
    manifest = artifact.verify(folder)
    assert {f"engine/rank{rank}.engine" for rank in range(4)} <= set(manifest.files)
    for process, name in ((0, "engine.log"), (1, "engine-1.log")):
        log = (builder.work_dir / name).read_text()
        assert [f"rank {rank} is built" in log for rank in range(4)] == [rank % 2 == process for rank in range(4)]
    assert "convert_checkpoint.py" in said[0]
    assert "--workers 1" in (builder.home / "work" / "mpi-job-1" / "command.json").read_text().replace('", "', " ")


def test_a_tool_that_the_first_process_runs_alone_does_not_join_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE", "PMI_RANK", "SLURM_PROCID"}
    for name in names:
        monkeypatch.setenv(name, "0")
    command = [sys.executable, "-c", "import os; print(*os.environ)"]
    run = replace(tool_run(tmp_path, *command), name="checkpoint")
    MpiJob(rank=0, size=2, folder=tmp_path / "mpi").run(run)
    assert "PATH" in (variables := run.log.read_text().split())
    assert names.isdisjoint(variables)


def test_one_process_compiles_the_ranks_of_two_nodes_on_the_gpus_of_one(here: Here, tmp_path: Path) -> None:
    builder = Builder(
        checkpoint=write_tiny_checkpoint(tmp_path / "checkpoint", num_attention_heads=8),
        catalog=write_catalog(tmp_path / "catalog.yaml", num_heads=8),
        home=tmp_path / "state",
        num_gpus=16,
    )
    folder = here.build(builder, "--nodes", "2", CONCH_DOUBLE_GPUS="\n".join([H100] * 8))
    manifest = artifact.verify(folder)
    assert {name for name in manifest.files if name.endswith(".engine")} == {
        f"engine/rank{rank}.engine" for rank in range(16)
    }
    assert (manifest.build["tp_size"], manifest.build["pp_size"], manifest.build["num_nodes"]) == (8, 2, 2)
    assert manifest.requires["num_gpus"] == "8", "of each node"
    log = (builder.work_dir / "engine.log").read_text()
    assert log == "".join(f"rank {rank} is built on GPU {rank % 8}\n" for rank in range(16))


def tool_run(folder: Path, *command: str) -> ToolRun:
    return ToolRun(name="engine", command=command, folder=folder, log=folder / "log", output=folder, num_bytes=0)


def test_a_process_that_fails_tells_the_first_one_which_ends_its_tool(tmp_path: Path) -> None:
    leader, follower = (MpiJob(rank=rank, size=2, folder=tmp_path / "mpi") for rank in (0, 1))
    (tmp_path / "mpi").mkdir()
    command = {"command": ["sh", "-c", "exit 3"], "folder": str(tmp_path)}
    (tmp_path / "mpi" / "command.json").write_text(json.dumps(command))
    with pytest.raises(BuildError, match=r"engine, process 1 failed \(exit status 3\)"):
        follower.follow()
    with pytest.raises(BuildError, match=r"^process 1 of 2: engine, process 1 failed \(exit status 3\)"):
        leader.run(tool_run(tmp_path, "sh", "-c", "exec sleep 60", "sh", "--workers", "2"))


def test_what_stops_the_first_process_stops_the_others(tmp_path: Path) -> None:
    leader, follower = (MpiJob(rank=rank, size=2, folder=tmp_path / "mpi") for rank in (0, 1))
    with pytest.raises(BuildError, match="the disk is full"), leader.led():
        raise BuildError("the disk is full")
    follower.follow()  # it returns


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, (3, 16, "mpi-7-2")),
        ({"PMI_SIZE": "2", "PMI_RANK": "1", "CONCH_MPI_JOB": "a b"}, (1, 2, "mpi-a-b")),
    ],
)
def test_the_launchers_environment_names_rank_and_size(
    environment: dict[str, str], expected: tuple[int, int, str] | None, tmp_path: Path
) -> None:
    job = MpiJob.of(environment, tmp_path)
    assert (job and (job.rank, job.size, job.folder.name)) == expected


def test_a_job_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the launcher names no job: set CONCH_MPI_JOB"):
        MpiJob.of({"PMI_SIZE": "2", "PMI_RANK": "1"}, tmp_path)


def test_a_name_of_an_earlier_job_is_refused(tmp_path: Path) -> None:
    job = MpiJob(rank=0, size=2, folder=tmp_path / "mpi-1")
    with job.led():
        pass
    with pytest.raises(BuildError, match="an earlier job of this name was here"), job.led():
        pass
