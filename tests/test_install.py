"""What is installed: the pins and their hashes, and Conch beside TensorRT-LLM, from a package index of stubs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helm.test_images import instructions

PROJECT = Path(__file__).parents[1]
PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT_FILE["project"]["optional-dependencies"]
CPU_PINS = "helm/images/triton-cpu.txt"
TEST_PINS = "tests/requirements.txt"
LOWEST_PINS = "tests/lowest.txt"
# A file of pins to the extras that it is for, as `make pins` writes it.
PINNED_EXTRAS = {
    "helm/images/frontend.txt": ["frontend", "traces"],
    CPU_PINS: ["cpu"],
    TEST_PINS: ["cpu", "test", "bench"],
    "docs/site/requirements.txt": ["docs"],
}
RECORDED = (PROJECT / "tests/data/tensorrt_llm_requirements_1.2.1.txt").read_text(encoding="utf-8")
TENSORRT_LLM = [Requirement(line.partition("#")[0]) for line in RECORDED.splitlines() if not line.startswith("#")]
# What transformers 4.57.3 requires of packages that Conch needs too.
TRANSFORMERS = ["tokenizers>=0.22.0,<=0.23.0", "huggingface_hub>=0.34.0,<1.0"]
# Of GPU acceptance, which the image has.
OF_THE_KIT = ("pytest", "pytest-asyncio", "openai", "httptools", "psutil")


def pins(name: str) -> dict[str, str]:
    """Return what a file of pins says of each package, by its normalised name."""
    text = (PROJECT / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "--only-binary"))]
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(): " ".join(line.split()) for line in lines}


@pytest.mark.parametrize("name", PINNED_EXTRAS)
def test_every_pin_is_a_version_with_hashes_and_no_address(name: str) -> None:
    for package, pin in pins(name).items():
        assert re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", pin), pin
        assert pins(TEST_PINS).get(package, pin) == pin, "two files differ"


@pytest.mark.parametrize(("name", "extras"), [*PINNED_EXTRAS.items(), (LOWEST_PINS, ["cpu", "traces"])])
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
    needed = [Requirement("conch[cpu]")]
    for each in needed:  # the list grows
        for requirement in map(Requirement, distribution(each.name).requires or ()):
            marker, environments = requirement.marker, [{"extra": extra} for extra in ("", *each.extras)]
            if requirement not in needed and (marker is None or any(map(marker.evaluate, environments))):
                needed.append(requirement)
    assert {canonicalize_name(each.name) for each in needed} == {"conch", *pins(CPU_PINS)} - {"setuptools"}


def test_a_file_with_other_bytes_is_not_installed(tmp_path) -> None:
    """A version alone does not fix the bytes: the package index could send other code."""
    _stub_wheel(tmp_path, "sniffio", pins(TEST_PINS)["sniffio"].split()[0].partition("==")[2], [])
    (tmp_path / "pins.txt").write_text(pins(TEST_PINS)["sniffio"])
    [flags] = re.findall(r"PIP_INSTALL\) (.*) -r \$\(PINS\)", (PROJECT / "Makefile").read_text(encoding="utf-8"))
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


def from_dockerfile() -> str:
    [line] = [line for line in instructions("triton-gpu") if "pip install" in line]
    return line.removeprefix("RUN ")


@pytest.mark.parametrize("numpy", ["1.26.4", "2.3.5"])
def test_conch_installs_beside_tensorrt_llm(numpy, tmp_path) -> None:
    """TensorRT-LLM 1.2.1 requires llguidance 0.7.29 and Conch 1.9.1: naming both left pip without a solution."""
    index, site = tmp_path / "index", environment(tmp_path / "image")
    index.mkdir()
    for name, version in _asked_for():
        _stub_wheel(index, name, version, [])
    image = _image(numpy)
    for name, (version, requires) in image.items():
        with zipfile.ZipFile(_stub_wheel(index, name, version, requires)) as wheel:
            wheel.extractall(site)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, tmp_path)

    script = from_dockerfile().replace("/tmp/image.txt", str(tmp_path / "image.txt"))
    own = {"PATH": f"{tmp_path}/image/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    isolation = {
        "PIP_NO_BUILD_ISOLATION": "0"
    }  # pip reads it as --no-build-isolation: setuptools is in the environment
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=own | offline | isolation, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    installed = dict(path.name.removesuffix(".dist-info").rsplit("-", 1) for path in site.glob("*.dist-info"))
    versions = {_file_name(name): version for name, (version, _) in image.items()}
    assert installed.items() >= (versions | {"conch": "0.1.0", "llguidance": "1.9.1", "aiohttp": "3.14"}).items()


def _image(numpy: str) -> dict[str, tuple[str, list[str]]]:
    """Return what the image has: each requirement of TensorRT-LLM at its lowest version, with what it requires."""
    image: dict[str, tuple[str, list[str]]] = {}
    for requirement in TENSORRT_LLM + [Requirement(text) for text in TRANSFORMERS]:
        lowest = [spec.version for spec in requirement.specifier if spec.operator in (">=", "==", "~=")]
        if lowest:
            image[requirement.name] = (lowest[0], [])
    image["transformers"] = (image["transformers"][0], TRANSFORMERS)
    image["pydantic"] = ("2.12", [])  # the release of October 2025; the image is of 2026
    image["aiohttp"] = ("3.13.5", [])
    image["numpy"] = (numpy, [])
    requires = [f"{requirement.name}{requirement.specifier}" for requirement in TENSORRT_LLM]
    return image | {"tensorrt_llm": ("1.2.1", requires)}


def _asked_for() -> list[tuple[str, str]]:
    """Each requirement at its lowest version, and a numpy that is newer than the image's."""
    extras = [text for name in ("tensorrt_llm", "build", "frontend") for text in EXTRAS[name]]
    found = [Requirement(text) for text in (*PROJECT_FILE["project"]["dependencies"], *extras)]
    lowest = {(it.name, spec.version) for it in found for spec in it.specifier if spec.operator == ">="}
    return [*sorted(lowest), ("numpy", "2.4.0"), *((name, "1.0") for name in OF_THE_KIT)]


def environment(folder: Path) -> Path:
    """Make an environment with the pip and setuptools of this one, and return its site-packages."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / "python3.12" / "site-packages"
    for path in Path(sysconfig.get_path("purelib")).glob("*"):
        if re.match(r"(pip|setuptools)(-.*)?$|_distutils_hack$", path.name):
            (site / path.name).symlink_to(path)
    return site


def _file_name(name: str) -> str:
    return name.replace("-", "_")


def _stub_wheel(index: Path, name: str, version: str, requires: Iterable[str]) -> Path:
    stem = f"{_file_name(name)}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
    files = {
        f"{name}.py": f"__version__ = {version!r}\n",
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    path = index / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file_name, text in files.items():
            wheel.writestr(file_name, text)
        wheel.writestr(record, "".join(f"{file_name},,\n" for file_name in (*files, record)))
    return path
