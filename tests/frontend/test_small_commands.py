"""What a cluster starts every few seconds is small."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_CODE = """
import json, os, sys
from frontend.__main__ import main
assert main(sys.argv[1:]) == 1
print(json.dumps([os.environ["OPENBLAS_NUM_THREADS"], sorted(sys.modules)]))
"""
_OF_SERVERS = {"aiohttp", "pydantic", "http.client", "frontend.app", "frontend.launcher.launcher"}


@pytest.mark.parametrize("command", ["health", "drain"])
def test_it_imports_nothing_of_the_servers_and_starts_no_pool_of_threads(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, command, "--triton=127.0.0.1:1"], capture_output=True, text=True, check=True
    )
    said, last = done.stdout.splitlines()
    assert said.startswith("failed: triton_unreachable: The inference server cannot be reached. (")
    num_threads, modules = json.loads(last)
    assert num_threads == "1"
    assert not _OF_SERVERS & set(modules)


@pytest.mark.parametrize("words", [("frontend", "doctor"), ("build_engines", "list")])
def test_a_closed_output_gives_no_traceback(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does, only earlier
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
