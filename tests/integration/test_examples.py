"""Runs the example that each command has in its help."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from frontend.__main__ import _parser
from tests.integration.stack import Stack
from tests.launching import FREE_PORTS, free_port
from tests.tensorrt_llm_artifact import DEMO
from tests.waiting import DEADLINE_S

COMMANDS = list(next(action.choices for action in _parser()._actions if isinstance(action.choices, dict)))
SIGNS = {"serve": "Ready: ", "api": "", "triton": "Started GRPCInferenceService"}  # printed by commands that serve
SHELL = f'conch() {{ {sys.executable} -m frontend "$@"; }}; conch '
ADDRESSES = {"http://127.0.0.1:8000": "url", "127.0.0.1:8001": "endpoint"}


@pytest.fixture
def folder(repository: Path, demo_artifact: Path, tmp_path: Path) -> Path:
    """A folder in which a user has built the demo model, and has adapters."""
    shutil.copytree(demo_artifact, tmp_path / ".conch" / "artifacts" / demo_artifact.name, copy_function=os.link)
    shutil.copytree(repository, tmp_path / ".conch" / "repository")
    shutil.copytree(DEMO / "adapters", tmp_path / "adapters")
    return tmp_path


def example(command: str) -> str:
    """Return the first example of a command's help, without the comment behind it."""
    words = [sys.executable, "-m", "frontend", command, "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}).stdout
    found = re.search(r"examples?:\s+(?:conch |python -m frontend )?(\S.*?)(?:  |\n|$)", text)
    assert found is not None, f"{command}: its help has no example"
    return found[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command_runs(command: str, folder: Path, stack: Stack) -> None:
    words = example(command)
    assert words.split()[0] == command
    for address, name in ADDRESSES.items():
        words = words.replace(address, getattr(stack, name))
    words = words.replace("--port 8000", f"--port {free_port()}")
    if command in ("serve", "run"):
        words += f" --state-dir={command} {' '.join(FREE_PORTS)}"
    if command == "triton":
        words += f" --state-dir=triton --grpc-port={free_port()} --metrics-port={free_port()}"
    process = subprocess.Popen(
        ["bash", "-c", f"{SHELL}{words}"],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "CONCH_TRITON_KEY": stack.launcher.frontend_settings.triton_key,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if command in SIGNS:
        assert any(SIGNS[command] in line for line in process.stdout), f"{words} ended"
        os.killpg(process.pid, signal.SIGTERM)
    output = process.communicate(timeout=DEADLINE_S)[0]
    expected = (0, -signal.SIGTERM, 128 + signal.SIGTERM) if command in SIGNS else (0,)
    assert process.returncode in expected, output


def test_the_completion_knows_commands_options_and_files(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "frontend", "completion", "bash"]
    script = tmp_path / "completion"
    script.write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    (tmp_path / "model.gguf").touch()

    def completed(*typed: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in ("conch", *typed))
        program = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(typed)}; _conch; printf '%s\\n' ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert completed("") >= {"serve", "run", "chat", "doctor", "build", "plan", "keys"}
    assert completed("ser") == {"serve"}
    assert completed("serve", "--triton-h") == {"--triton-http-port", "--triton-hang-s"}
    assert completed("build", "demo", "--prec") == {"--precision"}
    assert completed("serve", "mo") == {"model.gguf"}
