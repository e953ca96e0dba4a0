"""One build over several nodes: every rank of an MPI job compiles its part, and rank 0 does all other work.

    mpirun -n 16 --map-by ppr:8:node python -m build_engines build MODEL --runtime tensorrt_llm ...

The ranks share a file system. Rank 0 checks, converts, and writes the compile command to a file. Every process runs it
inside the job, where trtllm-build gives engine rank k to the process k modulo their number, and writes its result to a
file. Rank 0 waits for all results and seals the artifact.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.tool import ToolRun, run_tool

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_JOBS = (("CONCH_MPI_JOB",), ("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",), ("SLURM_JOB_ID", "SLURM_STEP_ID"))
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "MPI_")  # the variables by which a process joins a job
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob:
    """The MPI job of this process, and the folder of its messages."""

    rank: int
    size: int
    folder: Path

    @classmethod
    def of(cls, environment: Mapping[str, str], work_dir: Path) -> MpiJob | None:
        """Return the job of the environment; None: no job, or only one process.

        Raises:
            BuildError: the launcher gives the job no name.
        """
        size, rank = (_first(environment, names) for names in (_SIZES, _RANKS))
        if size is None or rank is None or int(size) < 2:
            return None
        for names in _JOBS:
            if all(name in environment for name in names):
                job = "-".join(re.sub(r"\W", "-", environment[name]) for name in names)
                return cls(rank=int(rank), size=int(size), folder=work_dir / f"mpi-{job}")
        raise BuildError("MPI: the launcher names no job: set CONCH_MPI_JOB to one new text for all ranks")

    @contextmanager
    def led(self) -> Iterator[None]:
        """Lead the other ranks in the block, as rank 0, and end them after it.

        Raises:
            BuildError: an earlier job had the same name.
        """
        if any(self.folder.glob("*.json")):
            raise BuildError(f"{self.folder}: an earlier job of this name was here: set CONCH_MPI_JOB to a new text")
        try:
            yield
        finally:
            self._write("end", {})

    def run(self, run: ToolRun) -> None:
        """Run a step's tool as rank 0: trtllm-build on all ranks together, other tools alone.

        Raises:
            BuildError: a rank failed.
        """
        if run.name != "engine":
            # The tool must not join the job: its MPI_Init would wait for the other ranks, which wait for the tool.
            alone = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
            run_tool(replace(run, environment=alone))
            return
        run = _with_one_worker(run)
        self._write("command", {"command": list(run.command), "folder": str(run.folder)})
        run_tool(run, self._check_ranks)
        self._wait(lambda: all(self._result(rank) is not None for rank in range(1, self.size)), self._check_ranks)
        self._check_ranks()

    def follow(self) -> None:
        """Wait for rank 0's command, and run it as another rank.

        Raises:
            BuildError: the tool failed, which rank 0 reads in a file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._wait(lambda: (self.folder / "command.json").exists() or (self.folder / "end.json").exists())
        if not (self.folder / "command.json").exists():
            return  # rank 0 has failed, or found the artifact
        message = json.loads((self.folder / "command.json").read_text(encoding="utf-8"))
        folder = Path(message["folder"])
        run = ToolRun(
            name=f"engine, process {self.rank}",
            command=message["command"],
            folder=folder,
            log=folder / f"engine-{self.rank}.log",
            output=self.folder,  # rank 0 shows the progress
            num_bytes=0,
        )
        try:
            run_tool(run, self._check_leader)
        except BuildError as exc:
            self._write(f"rank-{self.rank}", {"error": str(exc)})
            raise
        self._write(f"rank-{self.rank}", {"error": None})

    def _check_ranks(self) -> None:
        for rank in range(1, self.size):
            error = (self._result(rank) or {}).get("error")
            if error is not None:
                raise BuildError(f"process {rank} of {self.size}: {error}")

    def _check_leader(self) -> None:
        if (self.folder / "end.json").exists():
            raise BuildError("process 0 has ended")

    def _result(self, rank: int) -> dict[str, str | None] | None:
        path = self.folder / f"rank-{rank}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".{name}.{secrets.token_hex(8)}"
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.rename(self.folder / f"{name}.json")

    def _wait(self, is_over: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
        while not is_over():
            check()
            time.sleep(_POLL_S)


def _with_one_worker(run: ToolRun) -> ToolRun:
    """Return trtllm-build's run for one process of a job."""
    command = list(run.command)
    command[command.index("--workers") + 1] = "1"
    return replace(run, command=command)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if name in environment), None)
