"""NVIDIA Dynamo's frontend with its mock engine, the peer of the synthetic engine, from an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.launching import free_port

PINS = Path(__file__).with_name("dynamo.txt")
MODEL = "mock"
_START_S = 90.0
# The mock engine's speed-up. With 256 sequences it makes about 30 tokens a second for each at the second one.
_UNPACED, _PACED = 1000, 0.5
_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


class Unavailable(Exception):
    """Dynamo cannot be installed, or does not start, here."""


def installed_python(folder: Path) -> Path:
    """Return the Python of an environment with the pinned Dynamo, which is made when it is missing.

    Raises:
        Unavailable: pip failed.
    """
    python, installed = folder / "bin" / "python", folder / PINS.name
    if not installed.exists() or installed.read_text() != PINS.read_text():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(PINS)]
        installing = subprocess.run(command, capture_output=True, text=True, check=False)
        if installing.returncode:
            raise Unavailable(f"pip cannot install it: {installing.stderr.strip().splitlines()[-1:]}")
        shutil.copyfile(PINS, installed)
    return python


@contextmanager
def running(
    python: Path, folder: Path, tokenizer: Path, max_sequences: int, log: IO[str], *, is_paced: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """Run the frontend and the mock engine; yield the URL, and the process ids by name.

    Args:
        folder: for the files by which the two find each other.
        tokenizer: the folder of a checkpoint with a tokenizer and a chat template.
        is_paced: whether the engine keeps its own pace.

    Raises:
        Unavailable: it does not answer in time.
    """
    port = free_port()
    common = os.environ | {"DYN_FILE_KV": str(folder), "DYN_LOG": "error", "HF_HUB_OFFLINE": "1"}
    system_port = {"DYN_SYSTEM_PORT": str(free_port())}  # a signed 16-bit number there
    frontend = [str(python), "-m", "dynamo.frontend", "--http-port", str(port), *_PLANES]
    engine = [str(python), "-m", "dynamo.mocker", "--model-path", str(tokenizer), "--model-name", MODEL]
    engine += ["--speedup-ratio", str(_PACED if is_paced else _UNPACED), "--max-num-seqs", str(max_sequences), *_PLANES]
    with ExitStack() as stack:
        pids = {}
        for name, command, environment in (("frontend", frontend, {}), ("engine", engine, system_port)):
            process = subprocess.Popen(command, env=common | environment, stdout=log, stderr=log)
            stack.callback(_end, process)
            pids[name] = process.pid
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url)
        yield url, pids


def _wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                if json.load(answer)["data"]:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise Unavailable(f"it does not answer within {_START_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
