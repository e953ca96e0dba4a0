"""The pinned packages, and their hashes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from model_repository.system.llama_build import PACKAGES
from tests.gpu_image import required

PROJECT = Path(__file__).parents[1]
PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT_FILE["project"]["optional-dependencies"]
LOCAL_PINS = "helm/images/local.txt"
# What each build of llama.cpp adds to these.
DEVICE_PINS = {device: f"helm/images/{device}.txt" for device in ("cpu", "cuda12", "rocm", "vulkan")}
TEST_PINS = "tests/requirements.txt"
LOWEST_PINS = "tests/lowest.txt"
# A file of pins to the extras that it is for, as `make pins` writes it.
PINNED_EXTRAS = {
    "helm/images/frontend.txt": ["frontend", "postgres", "traces"],
    LOCAL_PINS: ["local"],
    TEST_PINS: ["cpu", "test", "bench"],
    "docs/site/requirements.txt": ["docs"],
}


def pins(name: str) -> dict[str, str]:
    """Return what a file of pins says of each package, by its normalised name."""
    text = (PROJECT / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "--only-binary"))]
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(): " ".join(line.split()) for line in lines}


@pytest.mark.parametrize("name", [*PINNED_EXTRAS, *DEVICE_PINS.values()])
def test_every_pin_is_a_version_with_hashes_and_no_address(name: str) -> None:
    for package, pin in pins(name).items():
        assert re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", pin), pin
        assert pins(TEST_PINS).get(package, pin) == pin, "two files differ"


@pytest.mark.parametrize(("name", "extras"), [*PINNED_EXTRAS.items(), (LOWEST_PINS, ["cpu", "postgres", "traces"])])
def test_the_pins_meet_the_projects_requirements(name: str, extras: list[str]) -> None:
    asked = [*PROJECT_FILE["build-system"]["requires"], *PROJECT_FILE["project"]["dependencies"]]
    asked += [text for extra in extras for text in EXTRAS[extra]]
    found = pins(name)
    for requirement in map(Requirement, asked):
        if requirement.name == "conch":  # its other extras
            test_the_pins_meet_the_projects_requirements(name, sorted(requirement.extras))
        elif (name, requirement.name) != (LOWEST_PINS, "nvidia-pytriton"):  # a server, which nothing imports
            version = found[re.sub(r"[-_.]+", "-", requirement.name).lower()].split()[0].partition("==")[2]
            assert requirement.specifier.contains(version), f"{requirement}: run: make pins"


def test_the_extra_cpu_needs_every_package_that_is_pinned_for_it() -> None:
    """A wheel brings no pins: a package that only they name would be missing."""
    assert required("conch[cpu]") == {"conch", *pins(LOCAL_PINS), *pins(DEVICE_PINS["cpu"])} - {"setuptools"}


@pytest.mark.parametrize("device", DEVICE_PINS)
def test_each_extra_of_a_device_adds_one_build_of_llama_cpp_and_its_libraries(device: str) -> None:
    local, *added = map(Requirement, EXTRAS[device])
    assert str(local) == "conch[local]"
    found = pins(DEVICE_PINS[device])
    for requirement in added:
        assert requirement.specifier.contains(found[requirement.name].split()[0].partition("==")[2]), "run: make pins"
    [build] = [name for name in found if name in PACKAGES]
    versions = {pin.split()[0].partition("==")[2] for pin in (found[build], pins(TEST_PINS)["cyllama"])}
    assert build == added[0].name and len(versions) == 1
    assert not found.keys() & pins(LOCAL_PINS).keys()
    others = {"nvidia-cuda-nvrtc-cu12"} if device == "cuda12" else set()  # cublas needs it
    assert found.keys() == {requirement.name for requirement in added} | others


def test_a_file_with_other_bytes_is_not_installed(tmp_path) -> None:
    """A version alone does not fix the bytes: the package index could send other code."""
    _stub_wheel(tmp_path, "sniffio", pins(TEST_PINS)["sniffio"].split()[0].partition("==")[2])
    (tmp_path / "pins.txt").write_text(pins(TEST_PINS)["sniffio"])
    [flags] = re.findall(r"PIP_INSTALL\) (.*) \$\(PINS:%=-r %\)", (PROJECT / "Makefile").read_text(encoding="utf-8"))
    offline = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "site")]
    command = [sys.executable, "-m", "pip", "install", *flags.split(), *offline, "-r", str(tmp_path / "pins.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "site").exists()


def test_make_uses_the_named_python_or_none(tmp_path: Path) -> None:
    """Another Python was used in place of a missing one."""
    stamp = tmp_path / "venv" / "python.stamp"
    command = ["make", "--no-print-directory", str(stamp), f"VENV={stamp.parent}", "PYTHON=/nope"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and done.stderr.startswith("No usable Python 3.12 was found")
    [line] = done.stdout.splitlines()
    assert line.startswith("not usable: ") and "/nope: " in line


def test_make_serve_takes_the_environment_of_the_device() -> None:
    def made(*variables: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", "--just-print", "serve", *variables]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)

    assert made("VENV=/nope").stdout.endswith("exec /nope/bin/conch serve demo \n")
    card = made("VENV=/nope", "DEVICE=vulkan").stdout
    assert "--no-deps -r helm/images/vulkan.txt\n" in card and "/nope/vulkan/bin/python -m pip install" in card
    assert card.endswith("exec /nope/vulkan/bin/conch serve demo \n")
    refused = made("DEVICE=metal")
    assert refused.returncode and "DEVICE=metal: must be one of cpu cuda12 rocm vulkan." in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        ("", ["tests", "tests", "tests/vulkan"]),
        ("-k stop", ["tests", "tests", "tests/vulkan"]),
        ("tests/test_imports.py -x", ["tests/test_imports.py", "tests/test_imports.py"]),
        ("tests/vulkan/test_doctor.py -x", ["tests/vulkan/test_doctor.py"]),
    ],
)
def test_make_test_runs_a_file_in_the_environments_that_it_is_for(arguments: str, runs: list[str]) -> None:
    """Files were run on devices too."""
    command = ["make", "--no-print-directory", "--just-print", "test", "VENV=/nope", f"ARGS={arguments}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert re.findall(r'-m pytest -m "[^"]*" (\S+)', done.stdout) == runs


def _stub_wheel(index: Path, name: str, version: str) -> None:
    stem = f"{name}-{version}"
    files = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(index / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file_name, text in files.items():
            wheel.writestr(file_name, text)
        wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{file_name},,\n" for file_name in files))
