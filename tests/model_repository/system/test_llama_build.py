"""The installed build of llama.cpp, by made-up packages of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontend.launcher.checks import check_llama_build
from frontend.launcher.errors import LaunchError
from model_repository.system import llama_build
from model_repository.system.llama_build import BuildsCollide, UnusableBuild, installed_build, usable_build
from tests.llama_packages import install_build


def test_the_build_of_the_first_folder_is_the_installed_one(tmp_path: Path, monkeypatch) -> None:
    """`make serve DEVICE=vulkan` has its environment before that of `make serve`."""
    before = installed_build()
    assert before is not None and before.llama_cpp_version.startswith("b")
    install_build(tmp_path, "cyllama-rocm", monkeypatch, architectures="gfx90a;gfx1100")
    found = installed_build()
    assert found is not None and (found.package, found.version, found.devices) == ("cyllama-rocm", "0.7.0", "ROCm")
    assert (found.llama_cpp_version, found.architectures) == ("b1", ("gfx90a", "gfx1100"))


def test_two_builds_in_a_folder_are_refused(tmp_path: Path, monkeypatch) -> None:
    """pip writes the files of the second one over those of the first, without a word."""
    for package in ("cyllama", "cyllama-vulkan"):
        install_build(tmp_path, package, monkeypatch)
    names = "cyllama cyllama-vulkan"
    rule = (
        f"cyllama and cyllama-vulkan are installed, and share the folder cyllama: pip uninstall {names}, then install"
    )
    with pytest.raises(BuildsCollide, match=f"^{rule} one extra again: "):
        installed_build()
    with pytest.raises(LaunchError, match=f"^{rule}"):
        check_llama_build()


def test_a_library_that_the_driver_lacks_is_named_with_its_remedy(tmp_path: Path, monkeypatch) -> None:
    """The import said `libcuda.so.1: cannot open shared object file`, in the log of a stage."""
    install_build(tmp_path, "cyllama-cuda12", monkeypatch)
    monkeypatch.setattr(llama_build, "_OF_SYSTEM", {"CUDA": {"libconch-none.so.1": "the driver has it"}})
    with pytest.raises(UnusableBuild, match=r"^cyllama-cuda12 needs libconch-none.so.1: the driver has it\. "):
        usable_build()
    monkeypatch.setattr(llama_build, "_OF_SYSTEM", {"CUDA": {"libc.so.6": ""}})
    monkeypatch.setattr(llama_build, "_OPENMP", {})
    assert usable_build() == installed_build()


def test_without_a_build_there_is_nothing_to_check(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "cyllama").mkdir()
    (tmp_path / "cyllama" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_build() is usable_build() is None
