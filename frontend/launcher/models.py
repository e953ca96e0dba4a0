"""Models that `serve` is given by name: build_engines builds them, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def build_models(models: Sequence[str], state_dir: Path) -> int:
    """Build each model unless its artifact is there, and render the repository of all in the state folder.

    Args:
        models: for `build_engines build`; none: nothing is built.

    Returns:
        the exit status; if it is not 0, build_engines has written the reason to stderr.
    """
    if not models:
        return 0
    command = [sys.executable, "-P", "-m", "build_engines", "build", *models, f"--state-dir={state_dir}"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
