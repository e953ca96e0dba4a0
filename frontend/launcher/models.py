"""Models that `serve` is given by name: build_engines builds them, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frontend.launcher.errors import NotBuilt


def build_models(models: Sequence[str], state_dir: Path) -> None:
    """Build each model unless its artifact is there, and render the repository of all in the state folder.

    Args:
        models: for `build_engines build`; none: nothing is built.

    Raises:
        NotBuilt: a model cannot be built; build_engines has written the reason to stderr.
    """
    if not models:
        return
    command = [sys.executable, "-m", "build_engines", "build", *models, f"--state-dir={state_dir}"]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise NotBuilt("`conch build` failed")
