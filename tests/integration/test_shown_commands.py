"""The blocks of commands that the pages show without a mark run as they are shown, on one server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S

# A text of the output, for each page with blocks that are run, by their language.
OUTPUTS = {
    ("README.md", "sh"): "The capital of France is Paris.",
    ("README.md", "python"): "1, 2, 3, 4,",
    ("docs/api.md", "python"): "The capital of France is Paris.",
    ("docs/cookbook.md", "python"): "['El gato duerme en el jardín.',",
    ("docs/models.md", "sh"): "The capital of Italy is Rome.",
    ("helm/README.md", "sh"): "",
}
SHOWN_URL = "http://127.0.0.1:8000"


def run_blocks(page: str, language: str) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [block for block in blocks(page) if block.language == language and not block.mark]


@pytest.fixture(scope="module")
def shown_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The server of `make serve ARGS=--with-embedder`; its embedder also has the name of one of the hub."""
    home = tmp_path_factory.mktemp("home")
    artifacts = [build(home, "demo"), build(home, "demo-embedder", "--alias", "all-minilm:22m")]
    run_build("render", *artifacts, "--repository", str(home / "repository"))
    with running_stack(home / "repository", tmp_path_factory) as stack:
        yield stack


@pytest.fixture
def folder(shown_server: Stack, tmp_path: Path) -> Path:
    """A folder like a clone's. Its `conch chat` talks to the running server."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    frontend = f'exec "{sys.executable}" -P -m frontend'
    chat = f'[ "$1" = chat ] && shift && {frontend} chat --url {shown_server.url} "$@"'
    (programs / "conch").write_text(f'#!/bin/sh\n{chat}\n{frontend} "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    shutil.copy(ROOT / "build_engines" / "demo" / "pictures.png", tmp_path / "picture.png")
    (tmp_path / "program.py").write_text("print('Hello')\n")
    return tmp_path


@pytest.mark.parametrize(("page", "language"), OUTPUTS)
def test_the_blocks_of_a_page_run(page: str, language: str, shown_server: Stack, folder: Path) -> None:
    text = "\n".join(block.text for block in run_blocks(page, language)).replace(SHOWN_URL, shown_server.url)
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = os.environ | {"CONCH_HOME": str(folder / "home"), "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input="Hello!", capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert OUTPUTS[page, language] in done.stdout
    shown = [line for block in run_blocks(page, "text") for line in block.text.splitlines()]
    if language == "sh":
        assert [line for line in shown if line != "..." and line not in done.stdout] == []
