"""CUDA's libraries in packages of Python, by a library of another name: the loader knows them by the name inside."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys
from model_repository.engine.llama_cpp.cuda_libraries import open_cuda_libraries
sys.path.insert(0, sys.argv[1])
open_cuda_libraries()
for name in ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12"):
    ctypes.CDLL(name)
"""


@pytest.mark.parametrize("has_packages", [True, False])
def test_a_library_of_cuda_is_found_once_its_package_is_opened(tmp_path: Path, has_packages: bool) -> None:
    """llama.cpp's build for CUDA could not be imported: the loader asked only the system for libcudart.so.12."""
    [found] = [file for file in distribution("cyllama").files or () if file.name.startswith("libgomp-")]
    library = Path(str(found.locate())).read_bytes()
    for package, name in (("cuda_runtime", "cudart"), ("cublas", "cublas"), ("cublas", "cublasLt")):
        folder = tmp_path / "nvidia" / package / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        soname = f"lib{name}.so.12".encode().ljust(len(found.name), b"\0")
        (folder / f"lib{name}.so.12").write_bytes(library.replace(found.name.encode(), soname))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path if has_packages else tmp_path / "nvidia")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == has_packages, done.stderr
    assert has_packages or "libcudart.so.12: cannot open shared object file" in done.stderr
