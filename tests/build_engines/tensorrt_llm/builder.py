"""Runs the build command as a user does, with the doubles of TensorRT-LLM's tools on PATH."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build_engines.tensorrt_llm.recipe import CONVERTERS, QUANTIZE
from tests.build_engines.tensorrt_llm.tiny_model import write_catalog, write_tiny_checkpoint

ROOT = Path(__file__).parents[3]
BIN = ROOT / "tests" / "doubles" / "bin"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"

_TIMEOUT_S = 30.0  # of what takes a second; only a test that fails waits for it


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a double stops until the test lets it go on: two named pipes."""

    folder: Path
    reached: int  # descriptor of one that is read

    @classmethod
    def make(cls, folder: Path) -> Gate:
        """Make the pipes."""
        folder.mkdir()
        for name in ("reached", "go"):
            os.mkfifo(folder / name)
        return cls(folder, os.open(folder / "reached", os.O_RDONLY | os.O_NONBLOCK))

    def wait(self) -> int:
        """Wait until a double stands here; return its process id."""
        ready, _, _ = select.select([self.reached], [], [], _TIMEOUT_S)
        assert ready, "no double came to the gate"
        return int(os.read(self.reached, 64))

    def open(self) -> None:
        """Let it go on."""
        (self.folder / "go").write_bytes(b"")


def write_examples(folder: Path) -> Path:
    """Write a clone of TensorRT-LLM's repository, with doubles of its converters, and return its folder."""
    for program in (*CONVERTERS.values(), QUANTIZE):
        (folder / program).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / program).exists():
            (folder / program).symlink_to(BIN / "converter.py")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A model, and where its build works."""

    checkpoint: Path
    catalog: Path
    home: Path
    family: str = "llama"
    num_gpus: int = 2
    version: str = "1.2.1"  # of TensorRT-LLM

    @classmethod
    def make(cls, folder: Path, family: str = "llama", num_gpus: int = 2, version: str = "1.2.1") -> Builder:
        """Write a tiny checkpoint and its catalog."""
        return cls(
            checkpoint=write_tiny_checkpoint(folder / "checkpoint", family),
            catalog=write_catalog(folder / "catalog.yaml"),
            home=folder / "state",
            family=family,
            num_gpus=num_gpus,
            version=version,
        )

    @property
    def artifacts_dir(self) -> Path:
        """Where artifacts go."""
        return self.home / "artifacts"

    @property
    def work_dir(self) -> Path:
        """Where the steps of this model work."""
        return self.home / "work" / f"tiny--{self.family}"

    def artifacts(self) -> list[Path]:
        """Return the folders of artifacts, hidden ones too."""
        return [path for path in self.artifacts_dir.iterdir() if path.is_dir()] if self.artifacts_dir.exists() else []

    def arguments(self, *extra: str) -> list[str]:
        """Return the command line after `python -m build_engines`."""
        places = ["--checkpoint", str(self.checkpoint), "--catalog", str(self.catalog)]
        places += ["--home", str(self.home)]
        if "pytorch" not in extra:
            places += ["--tensorrt-llm-examples", str(write_examples(self.home.parent / "TensorRT-LLM"))]
        model = ["build", f"tiny/{self.family}", "--runtime", "tensorrt_llm", "--gpus", str(self.num_gpus)]
        return [*model, *places, *extra]

    def environment(self, **extra: str) -> dict[str, str]:
        """Return an environment in which TensorRT-LLM and its tools are installed, and GPUs are there."""
        site = self.home.parent / "site"
        package = site / f"tensorrt_llm-{self.version}.dist-info"
        package.mkdir(parents=True, exist_ok=True)
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {self.version}\n")
        path = [str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]]
        gpus = "\n".join([H100] * self.num_gpus)
        ours = {"PATH": ":".join(path), "PYTHONPATH": f"{site}:{ROOT}", "CONCH_DOUBLE_GPUS": gpus}
        return {**os.environ, **ours, **extra}

    def start(self, *extra: str, **environment: str) -> subprocess.Popen[str]:
        """Build, in the background."""
        return self._start(["-m", "build_engines", *self.arguments(*extra)], environment)

    def start_and_die_in(self, target: str) -> subprocess.Popen[str]:
        """Build, and be killed at the call of a function, by its full name."""
        owner, _, name = target.rpartition(".")
        script = (
            "import os, pkgutil, signal, sys\n"
            f"kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"setattr(pkgutil.resolve_name({owner!r}), {name!r}, kill)\n"
            "from build_engines.__main__ import main\n"
            f"sys.exit(main({self.arguments()!r}))\n"
        )
        return self._start(["-c", script], {})

    def _start(self, arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environment(**environment),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
