"""What a build and a server need of the machine and its image, the likeliest to be missing first."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.workshop.gpu_acceptance.report import Check

MIN_SHARED_MEMORY_BYTES = 1 << 30
_TIMEOUT_S = 300.0  # the first import of TensorRT-LLM takes a minute


@dataclass(frozen=True, slots=True)
class Need:
    """One need: a command that succeeds if it is met, and the places to look at if it fails."""

    name: str
    command: tuple[str, ...]
    remedy: str
    ends_run: bool = True  # without it no server runs


def needs(examples: Path | None) -> Iterator[Need]:
    """Yield the needs, in their order.

    Args:
        examples: the folder of TensorRT-LLM's converters; None: nothing is compiled.
    """
    yield _python(
        "The user has a name", "import getpass; print(getpass.getuser())", "docker's -e USER=conch: torch asks for it"
    )
    yield _python(
        "A GPU is visible",
        "from model_repository.system.machine import read_machine; found = read_machine(); print(found); "
        "exit(found.gpu_error or not found.gpu_names)",
        "the driver, NVIDIA's container toolkit, docker's --gpus",
    )
    yield _python(
        "torch computes on a GPU",
        "import numpy, torch; from model_repository.engine.tensorrt_llm import tensors; "
        "print(tensors.to_tensor(numpy.ones(4), torch.from_numpy(numpy.ones(1)).to('cuda')).sum())",
        "the driver's version in docs/gpu.md, and CUDA_VISIBLE_DEVICES",
    )
    yield _python(
        "TensorRT-LLM can be imported",
        "import tensorrt_llm; print(tensorrt_llm.__version__)",
        "the image; a working directory that is a clone of TensorRT-LLM hides the installed package",
    )
    yield _python(
        "Conch is installed beside it",
        "import llguidance, model_repository.engine.constraint, build_engines.__main__, frontend.app; "
        "print('llguidance', llguidance.__version__)",
        "step 3 of docs/gpu.md: llguidance must be 1.9, aiohttp 3.14",
    )
    yield _python(
        "MPI starts a worker",
        "import os, socket, sys; from model_repository.engine.tensorrt_llm.mpi import prepare_mpi; "
        "prepare_mpi(os.environ, socket.gethostname(), is_root=os.geteuid() == 0); from mpi4py import MPI; "
        "worker = ('-c', 'from mpi4py import MPI; MPI.Comm.Get_parent().Disconnect()'); "
        "MPI.COMM_SELF.Spawn(sys.executable, worker, 1).Disconnect(); print(MPI.Get_library_version().split(',')[0])",
        "PATH, which must have MPI's own programs: orted in Open MPI 4, prte in 5",
    )
    yield _python(
        "tritonserver is found",
        "import os, pathlib; from frontend.launcher.triton_server import find_triton; "
        "print(find_triton(None, pathlib.Path('.conch'), os.environ).binary)",
        "the image: it must be one with tritonserver",
    )
    yield _python(
        "/dev/shm has 1 GiB",
        f"import shutil; free = shutil.disk_usage('/dev/shm').free; print(free, 'bytes'); "
        f"exit(free < {MIN_SHARED_MEMORY_BYTES})",
        "docker's --shm-size=2g; shmSize of the chart",
    )
    yield _python(
        "Kernels that are compiled while serving can be kept",
        "import pathlib, tempfile; folder = pathlib.Path.home() / '.cache'; folder.mkdir(parents=True, exist_ok=True); "
        "tempfile.TemporaryFile(dir=folder); print(folder)",
        "docker's -e HOME=/tmp, or a volume: flashinfer writes into ~/.cache",
    )
    if examples is not None:
        program = examples / "examples" / "quantization" / "quantize.py"
        command = (sys.executable, str(program), "--help")
        yield Need(
            "The converters start", command, "--tensorrt-llm-examples: a clone of v1.2.1, or /app", ends_run=False
        )


def checked(need: Need) -> Check:
    """Check a need. A process of its own shows also a crash."""
    started = time.monotonic()
    try:
        done = subprocess.run(need.command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        lines, is_met = (done.stdout + done.stderr).strip().splitlines(), done.returncode == 0
        said = lines[-1] if lines else f"exit status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as exc:
        said, is_met = str(exc), False
    detail = said if is_met else f"{said}. Look at: {need.remedy}"
    return Check(need.name, "passed" if is_met else "failed", detail, time.monotonic() - started)


def _python(name: str, code: str, remedy: str) -> Need:
    return Need(name, (sys.executable, "-c", code), remedy)
