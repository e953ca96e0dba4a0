"""Finds the shared library of the Python that runs this, which Triton's Python backend loads.

Standard library only: the Makefile runs this file with each Python 3.12 that it finds, and takes the first that exits
with status 0.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

LIBRARY = "libpython3.12.so.1.0"


def libpython_dir() -> Path | None:
    """Return the folder of the shared library; None if there is no such file, or the loader finds it by itself."""
    # A relocated Python still names the folder of its build, so the folder that it runs from comes first.
    for folder in (Path(sys.base_prefix) / "lib", Path(sysconfig.get_config_var("LIBDIR") or "/")):
        if os.access(folder / LIBRARY, os.R_OK):
            return folder
    return None


def why_unusable() -> str | None:
    """Return the reason why the project cannot use this Python, or None."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 12):
        return f"is {sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
    if libpython_dir() is None and not _is_known_to_loader():
        return f"has no readable {LIBRARY}"
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        return "cannot make virtual environments (on Debian and Ubuntu: the package python3.12-venv)"
    return None


def _is_known_to_loader() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if reason := why_unusable():
        sys.exit(f"{sys.executable}: {reason}")
