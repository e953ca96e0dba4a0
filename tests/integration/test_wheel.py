"""The wheel of `make wheel`, installed outside of the checkout as README.md says, serves without the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.gpu_image import environment
from tests.launching import FREE_PORTS
from tests.raw_model import real_model
from tests.test_install import DEVICE_PINS, LOCAL_PINS, PROJECT, pins
from tests.waiting import DEADLINE_S

PACKAGES = ("frontend", "model_repository", "build_engines")
NEEDED = ("Makefile", "pyproject.toml", "README.md", "LICENSE", "helm/Chart.yaml", LOCAL_PINS, *DEVICE_PINS.values())
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the wheel is installed in, with the packages that are pinned for its extra `cpu`."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout, dist, site = folder / "checkout", folder / "dist", environment(folder / "venv")
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, checkout / name)
    stamp = f"{sys.prefix}/serve.stamp"
    _run("make", "wheel", f"--old-file={stamp}", f"VENV={sys.prefix}", f"DIST={dist}", folder=checkout)
    shutil.rmtree(checkout)
    for name in pins(LOCAL_PINS) | pins(DEVICE_PINS["cpu"]):
        found = distribution(name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    [wheel], [constraints] = dist.glob("conch-*.whl"), dist.glob("conch-*-constraints.txt")
    pip = (folder / "venv" / "bin" / "python", "-m", "pip", "install", "--no-index")
    _run(*pip, "-c", constraints.name, f"./{wheel.name}[cpu]", folder=dist)
    return folder / "venv"


def _run(*command: str | Path, folder: Path, typed: str = "") -> str:
    done = subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_packages_is_installed(installed: Path) -> None:
    [site] = installed.glob("lib/*/site-packages")
    for package in PACKAGES:
        for path in (PROJECT / package).rglob("*.*"):
            name = path.relative_to(PROJECT)
            if "__pycache__" not in path.parts and name.name != "pictures.png":  # of the demo's page
                assert (site / name).is_file(), name


@pytest.mark.parametrize("model", ["demo", str(real_model())], ids=["demo", "smollm2"])
def test_it_serves_without_the_checkout(installed: Path, tmp_path: Path, model: str) -> None:
    conch = installed / "bin" / "conch"
    words = ("run", model, "--lines", f"--home={tmp_path / 'home'}", *FREE_PORTS)
    answer = _run(conch, *words, folder=tmp_path, typed=f"/set temperature 0\n/set max_tokens 8\n{QUESTION}\n")
    assert answer.strip() and (model != "demo" or "Paris" in answer)
