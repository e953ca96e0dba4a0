"""The list of docs/request-path.md is the path of a request, and short enough to be read."""

from __future__ import annotations

import subprocess
import sys

from tests.workshop import request_path

MAX_FUNCTIONS, MAX_LINES = 30, 600


def test_the_page_names_few_functions_and_a_streamed_chat_passes_them_all() -> None:
    named = request_path.reading_list()
    assert 20 < len(named) <= MAX_FUNCTIONS
    assert sum(each.num_lines for each in named) <= MAX_LINES
    command = [sys.executable, "-m", "tests.workshop.request_path"]  # it forks, and replaces Triton's module
    done = subprocess.run(command, cwd=request_path.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    passed = {f"{path}:{name}" for path, name in _printed(done.stdout)}
    assert [str(each) for each in named if str(each) not in passed] == []


def _printed(output: str) -> list[tuple[str, str]]:
    places, path = [], ""
    for line in output.splitlines():
        if line.endswith(".py"):
            path = line
        elif line.startswith("  "):
            places.append((path, line.split()[1]))
    return places
