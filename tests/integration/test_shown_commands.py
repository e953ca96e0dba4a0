"""The blocks of commands that README.md and docs/ show without a mark run as they are shown, on one server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S

# A text of the output, for each page with blocks that are run, by their language.
OUTPUTS = {
    ("README.md", "sh"): "The capital of France is Paris.",
    ("README.md", "python"): "1, 2, 3, 4,",
    ("docs/api.md", "python"): "The capital of France is Paris.",
    ("docs/cookbook.md", "python"): "The weather in Paris is",
    ("docs/models.md", "sh"): "The capital of Italy is Rome.",
    ("helm/README.md", "sh"): "",
}
SHOWN_URL = "http://127.0.0.1:8000"


def run_blocks(page: str, language: str) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [block for block in blocks(page) if block.language == language and not block.mark]


@pytest.fixture
def folder(stack: Stack, tmp_path: Path) -> Path:
    """A folder like a clone's, whose `conch chat` talks to the running server."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    frontend = f'exec "{sys.executable}" -P -m frontend'
    chat = f'[ "$1" = chat ] && shift && {frontend} chat --url {stack.url} "$@"'
    (programs / "conch").write_text(f'#!/bin/sh\n{chat}\n{frontend} "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    shutil.copy(ROOT / "build_engines" / "demo" / "pictures.png", tmp_path / "picture.png")
    (tmp_path / "program.py").write_text("print('Hello')\n")
    return tmp_path


@pytest.mark.parametrize(("page", "language"), OUTPUTS)
def test_the_blocks_of_a_page_run(page: str, language: str, stack: Stack, folder: Path) -> None:
    text = "\n".join(block.text for block in run_blocks(page, language)).replace(SHOWN_URL, stack.url)
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = os.environ | {"CONCH_HOME": str(folder / "home"), "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input="Hello!", capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert OUTPUTS[page, language] in done.stdout
    shown = [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
    if language == "sh":
        assert [line for line in shown if line != "..." and line not in done.stdout] == []
