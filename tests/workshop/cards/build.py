"""The build of llama.cpp for the card of this machine: a package, or compiled here. It needs Python alone."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from tests.workshop.gpu_acceptance.report import LeftOut, Step, UnmetNeeds

ROOT = Path(__file__).parents[3]
VENV = ROOT / ".venv"
# The version in cyllama/build_config.json of the pinned package; a test compares it.
LLAMA_CPP = "b11669"
SOURCES = f"https://github.com/ggml-org/llama.cpp/archive/refs/tags/{LLAMA_CPP}.tar.gz"
_NUM_LINES = 30  # of a failed command, in the report
_INSTALL_S, _DOWNLOAD_S, _COMPILE_S = 240.0, 60.0, 420.0
_BACKENDS = {"cuda12": "CUDA", "rocm": "HIP", "vulkan": "VULKAN"}  # of cmake's options GGML_...


@dataclass(frozen=True, slots=True)
class Programs:
    """llama.cpp's own programs, compiled here. They measure the library; Conch does not run on them."""

    folder: Path


def command(step: Step, words: Sequence[str | Path], timeout_s: float, **options: str) -> str:
    """Run a command, and return its output.

    Args:
        options: variables of its environment.

    Raises:
        LeftOut: it is missing, fails or takes too long; its last lines are in the step.
    """
    text = " ".join(map(str, words))
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=os.environ | options,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as exc:
        raise LeftOut(f"{words[0]} is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        raise LeftOut(f"{text}: no end within {timeout_s:g} s") from exc
    if done.returncode:
        step.lines += [f"$ {text}", *done.stdout.splitlines()[-_NUM_LINES:]]
        raise LeftOut(f"{text}: exit status {done.returncode}")
    return done.stdout


def find(step: Step, device: str, sources: Path | None, home: Path) -> Path | Programs:
    """Return the Python that computes on a device by the pinned package, or else programs that are compiled here.

    Args:
        device: as of `make serve DEVICE=...`.
        sources: of llama.cpp; None: downloaded.

    Raises:
        UnmetNeeds: neither can be had.
    """
    reasons = []
    try:
        python = _installed(step, device)
    except LeftOut as exc:
        reasons.append(f"no package: {exc}")
    else:
        step.check("a build is found", True, f"the package for {device}, {python}")
        return python
    try:
        programs = _compiled(step, device, sources, home)
    except LeftOut as exc:
        reasons.append(f"not compiled: {exc}")
        step.check("a build is found", False, "; ".join(reasons))
        raise UnmetNeeds("; ".join(reasons)) from exc
    step.lines += reasons
    step.check("a build is found", True, f"llama.cpp is compiled, in {programs.folder}")
    return programs


def _installed(step: Step, device: str) -> Path:
    """Return a Python with the package: this one, or the one of `make`, which installs it."""
    own, environment = ("", VENV) if device == "cpu" else (f"-{device}", VENV / device)
    with suppress(PackageNotFoundError):
        importlib.metadata.version(f"cyllama{own}")
        return Path(sys.executable)
    python = environment / "bin" / "python"
    if not python.exists():
        stamps = [f".venv/{'serve' if device == 'cpu' else device}.stamp", ".venv/model.stamp"]
        # Without a network it ends soon.
        command(step, ["make", *stamps], _INSTALL_S, PIP_RETRIES="1", PIP_DEFAULT_TIMEOUT="10")
    command(step, [python, "-c", "import cyllama"], 60)
    return python


def _compiled(step: Step, device: str, sources: Path | None, home: Path) -> Programs:
    if device == "cpu":
        raise LeftOut("--device cpu is a trial of the package")
    compiler = {"cuda12": "nvcc", "rocm": "hipcc", "vulkan": "glslc"}[device]
    for program in (compiler, "cmake"):
        if shutil.which(program) is None:
            raise LeftOut(f"{program} is not installed")
    folder = _downloaded(home) if sources is None else sources
    if not (folder / "CMakeLists.txt").is_file():
        raise LeftOut(f"{folder}: no sources of llama.cpp")
    backend, built = _BACKENDS[device], home / f"llama.cpp-{device}"
    options = [f"-DGGML_{backend}=ON", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
    options += ["-DCMAKE_CUDA_ARCHITECTURES=native"] if device == "cuda12" else []
    command(step, ["cmake", "-S", folder, "-B", built, *options], 120)
    threads = str(os.cpu_count() or 1)
    command(step, ["cmake", "--build", built, "--target", "llama-bench", "--parallel", threads], _COMPILE_S)
    return Programs(built / "bin")


def _downloaded(home: Path) -> Path:
    folder, archive = home / f"llama.cpp-{LLAMA_CPP}", home / "llama.cpp.tar.gz"
    if not folder.is_dir():
        try:
            with urllib.request.urlopen(SOURCES, timeout=_DOWNLOAD_S) as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as exc:
            raise LeftOut(f"{SOURCES}: {exc}; --llama-cpp names a folder with the sources") from exc
        with tarfile.open(archive) as tar:
            tar.extractall(home, filter="data")
    return folder
