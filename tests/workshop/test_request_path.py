"""docs/request-path.md lists the functions that a request passes, as measured."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workshop import request_path

COMMAND = [sys.executable, "-m", "tests.workshop.request_path"]  # it forks, and replaces Triton's module


@pytest.mark.parametrize("walk", request_path.WALKS)
def test_a_walk_passes_each_hand_over_and_the_page_lists_those_of_a_streamed_chat(walk: str) -> None:
    command = [*COMMAND, walk, "--list"]
    done = subprocess.run(command, cwd=request_path.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if walk == "chat":
        measured, listed = _spine(done.stdout), request_path.listed()
        assert (measured - listed, listed - measured) == (set(), set()), f"{' '.join(COMMAND[1:])} chat --write"


def _spine(output: str) -> set[str]:
    places, path = set(), ""
    for line in output.splitlines():
        if line.endswith(".py"):
            path = line
        elif line.startswith("  ") and line.endswith(" *"):
            places.add(f"{path}:{line.split()[1]}")
    return places
