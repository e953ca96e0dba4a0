"""An environment like that of a GPU image: TensorRT-LLM's requirements, and Conch installed as its Dockerfile says.

Packages that Conch needs too are real: `make test`'s own, packed again, or those of tests/data/gpu_image_RELEASE.txt,
which `make test` downloads. The others are names with versions; tests/doubles stands in for TensorRT-LLM and torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1]
RELEASES = ("1.2.1", "1.3.0rc29")
_DATA = PROJECT / "tests" / "data"
_WHEELS = Path(sys.prefix) / "gpu-images"  # by `make`
# Of the folders that are sent to the builder, by name.
_SENT = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
_NOT_SENT = [Path(line).name for line in _SENT if line[0] not in "!#*" or line.startswith("**/")]
_OLDER = {"aiohttp": "3.13.5", "llguidance": "0.7.29"}  # of the image; the script replaces them


@dataclass(frozen=True, slots=True)
class GpuImage:
    """An image's folders, and the variables of its containers."""

    root: Path
    environment: dict[str, str]
    packages: dict[str, str]  # versions before Conch's installation, by normalised name

    def command(self, *words: str, **variables: str) -> list[str]:
        """Return a command with the container's variables alone."""
        environment = self.environment | variables
        return ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *words]


def instructions(name: str) -> list[str]:
    """Return the instructions of a Dockerfile, each in one line, without comments."""
    text = (PROJECT / "helm" / "images" / f"{name}.Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def required(requirement: str) -> set[str]:
    """Return the normalised names of all packages that a requirement needs here, as installed packages say."""
    needed = [Requirement(requirement)]
    for each in needed:  # the list grows
        for found in map(Requirement, distribution(each.name).requires or ()):
            marker, environments = found.marker, [{"extra": extra} for extra in ("", *each.extras)]
            if found not in needed and (marker is None or any(map(marker.evaluate, environments))):
                needed.append(found)
    return {canonicalize_name(each.name) for each in needed}


def environment(folder: Path) -> Path:
    """Make an environment with the pip and setuptools of this one, and return its site-packages."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / "python3.12" / "site-packages"
    for path in Path(sysconfig.get_path("purelib")).glob("*"):
        if re.match(r"(pip|setuptools)(-.*)?$|_distutils_hack$", path.name):
            (site / path.name).symlink_to(path)
    return site


def gpu_image(root: Path, release: str) -> GpuImage:
    """Make the environment of a release in an empty folder.

    Raises:
        AssertionError: the Dockerfile's installation fails, as it would in the image.
    """
    wheels = root / "wheels"
    shutil.copytree(_WHEELS / release, wheels)
    real: dict[str, Path] = {canonicalize_name(path.name.split("-")[0]): path for path in wheels.iterdir()}
    for name in required("conch[acceptance,build,frontend,tensorrt_llm]") - real.keys() - {"conch"}:
        real[name] = _packed(wheels, name)
    site = environment(root / "venv")
    texts = (_DATA / f"tensorrt_llm_requirements_{release}.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(text.partition("#")[0]) for text in texts if not text.startswith("#")]
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    _stub(site, "tensorrt_llm", release, f"Summary: A test double of TensorRT-LLM's Python package\n{requires}")
    for name in ({requirement.name for requirement in requirements} | _OLDER.keys()) - {"setuptools"}:
        if name not in _OLDER and (wheel := real.get(canonicalize_name(name))):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
        else:
            _stub(site, name, _OLDER.get(name) or _lowest(requirements, name))

    code, programs = root / "opt" / "conch", root / "bin"
    programs.mkdir()
    dockerfile = instructions("triton-gpu" if release == "1.2.1" else "tensorrt-llm")
    for line in dockerfile:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, target = line.split()[1:]
            for source in sources:
                _copy(PROJECT / source, code / target)
    doubles = code / "tests" / "doubles"
    (site / "doubles.pth").write_text(f"{doubles / 'python'}\n{doubles / 'reference'}\n")
    contract = "tensorrt_llm_contract" + ("" if release == "1.2.1" else f"_{release}") + ".json"
    variables = {
        "PATH": f"{root / 'venv' / 'bin'}:{programs}:{doubles / 'bin'}:/usr/bin:/bin",
        "HOME": "/tmp",
        "TENSORRT_LLM_CONTRACT": contract,
        **dict(line.split()[1].split("=", 1) for line in dockerfile if line.startswith("ENV ")),
    }
    found = (path.name.removesuffix(".dist-info").rsplit("-", 1) for path in site.glob("*.dist-info"))
    image = GpuImage(root, variables, {canonicalize_name(name): version for name, version in found})
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_COMPILE": "1"}
    offline["PIP_NO_BUILD_ISOLATION"] = "0"  # pip reads it as --no-build-isolation: setuptools is in the environment
    for line in dockerfile:
        if line.startswith("RUN ") and ("beside-tensorrt-llm.sh" in line or "selfcheck" in line):
            script = line.removeprefix("RUN ").replace("/opt/conch", str(code)).replace("/usr/local/bin", str(programs))
            command = image.command("bash", "-c", script, **offline)
            done = subprocess.run(command, cwd=code, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return image


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_SENT))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _lowest(requirements: list[Requirement], name: str) -> str:
    specifiers = [spec for each in requirements if each.name == name for spec in each.specifier]
    lowest = [spec.version for spec in specifiers if spec.operator in (">=", "==", "~=", "<=")]
    return lowest[0] if lowest else "1.0"


def _packed(folder: Path, name: str) -> Path:
    """Pack an installed package into a wheel, and return its path."""
    found = distribution(name)
    path = folder / f"{canonicalize_name(name).replace('-', '_')}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))
    return path


def _stub(site: Path, name: str, version: str, further: str = "") -> None:
    """Install a package without files."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{further}")
    (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n{folder.name}/RECORD,,\n")
