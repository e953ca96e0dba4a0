"""Mounts of a test's own, which end with it. They need root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


def with_own_mounts[Value](function: Callable[[], Value]) -> Value:
    """Run a function in a thread with mounts of its own. The threads and processes that it starts have them, too."""

    def run() -> Value:
        try:
            os.unshare(os.CLONE_NEWNS)
        except PermissionError:
            pytest.skip("needs root, for mounts of its own")
        _mount("--make-rprivate", "/")
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def make_read_only(folder: Path) -> None:
    """Mount a folder on itself, for reading only."""
    _mount("--bind", str(folder), str(folder))
    _mount("-o", "remount,bind,ro", str(folder))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
