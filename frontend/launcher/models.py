"""Models that `serve` is given by name: build_engines builds them, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frontend.launcher.errors import NotBuilt

_ARTIFACT = "artifact "  # the beginning of the line in which `build` names its result


def build_models(models: Sequence[str], state_dir: Path) -> None:
    """Build each model unless its artifact is there, and render the repository of all in the state folder.

    Args:
        models: names for `build_engines build`, folders of checkpoints, or both.

    Raises:
        NotBuilt: a model cannot be built; build_engines has written the reason to stderr.
    """
    state = f"--state-dir={state_dir}"
    artifacts: list[str] = []
    for model in models:
        source = [Path(model).resolve().name, f"--checkpoint={model}"] if Path(model).is_dir() else [model]
        lines = _run("build", *source, state).splitlines()
        artifacts += [line.removeprefix(_ARTIFACT).strip() for line in lines if line.startswith(_ARTIFACT)]
    if len(artifacts) > 1:  # `build` has rendered a repository that serves the last model alone
        _run("render", *artifacts, f"--repository={state_dir / 'repository'}")


def _run(*words: str) -> str:
    """Run a command of build_engines, and return its standard output."""
    command = [sys.executable, "-m", "build_engines", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"build_engines {words[0]} failed")
    return done.stdout
