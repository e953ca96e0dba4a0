"""The command `conch` as a person uses it, on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.model_source import DEMO
from frontend.chat import ChatClient, chat
from tests.build_engines.stand_in_hub import Repository, stand_in_hub
from tests.integration.api import Api
from tests.launching import FREE_PORTS
from tests.waiting import DEADLINE_S

PROMPT = "> "
# The console script, on a terminal of its own.
CONCH = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "conch"
from frontend.__main__ import main
sys.exit(main())
"""


class Terminal:
    """A command on a terminal of its own, at which the test types and reads."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.text = ""
        self._seen = 0
        self._terminal, end = pty.openpty()
        command = [sys.executable, "-c", CONCH, *words]
        self._process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, start_new_session=True, env=os.environ | environment
        )
        os.close(end)

    def wait_for(self, text: str) -> None:
        """Read until this text comes. The next call searches behind it."""
        while (found := self.text.find(text, self._seen)) < 0:
            self.text += os.read(self._terminal, 4096).decode()
        self._seen = found + len(text)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def status(self) -> int:
        """Return the exit status, once it has ended."""
        try:
            while piece := os.read(self._terminal, 4096):
                self.text += piece.decode()
        except OSError:  # the other side is closed
            os.close(self._terminal)
        return self._process.wait(DEADLINE_S)


def test_a_gguf_file_of_the_hub_leads_to_a_conversation(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), folder / "demo-F16.gguf", "f16")
    shutil.copyfile(DEMO / "mmproj.gguf", folder / "mmproj-F16.gguf")
    with stand_in_hub({"org/demo-GGUF": Repository(folder)}) as endpoint:
        hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
        terminal = Terminal("run", "org/demo-GGUF:F16", f"--state-dir={tmp_path / 'state'}", *FREE_PORTS, **hub)
        terminal.wait_for("org/demo-GGUF:F16: Ctrl-C stops an answer, Ctrl-D ends the conversation.")
        terminal.wait_for(PROMPT)
        terminal.type("What is the capital of France?\n")
        terminal.wait_for("The capital of France is Paris.")
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert terminal.status() == 0
    assert "Traceback" not in terminal.text and len(terminal.text.splitlines()) <= 15


def test_run_leads_from_a_name_to_a_conversation(tmp_path: Path) -> None:
    terminal = Terminal("run", "demo", f"--state-dir={tmp_path}", *FREE_PORTS)
    terminal.wait_for("demo: Ctrl-C stops an answer, Ctrl-D ends the conversation.")
    terminal.wait_for(PROMPT)
    terminal.type("What is the capital of France?\n")
    terminal.wait_for("The capital of France is Paris.")
    terminal.wait_for(PROMPT)
    terminal.type("\x1b[A\n")  # the arrow up
    terminal.wait_for("The capital of France is Paris.")
    terminal.wait_for(PROMPT)
    terminal.type("\nCount from 1 to 20.\n")
    terminal.wait_for("3, ")
    terminal.type("\x03")
    terminal.wait_for(PROMPT)
    assert "20" not in terminal.text.rpartition("1, 2")[2], "Ctrl-C did not end the answer"
    terminal.type("\x04")
    assert terminal.status() == 0
    assert "[triton]" not in terminal.text and "Traceback" not in terminal.text
    assert len(terminal.text.splitlines()) <= 18


def test_a_model_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    terminal = Terminal("serve", "no-such-model", f"--state-dir={tmp_path}")
    assert terminal.status() == 1
    said, failed = terminal.text.splitlines()
    assert said.startswith("error: no-such-model: not in the catalog; ")
    assert said.endswith(" (a MODEL may also be OWNER/NAME of the hub, a folder or FILE.gguf)")
    assert failed == "\x1b[31merror:\x1b[0m `conch build` failed"


def lines(*texts: str) -> Callable[[str], str]:
    """Return a function that reads these lines, and then the end of the input."""
    left = list(texts)

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def test_chat_remembers_the_conversation_and_goes_on_after_an_error(api: Api) -> None:
    out = io.StringIO()
    said = lines("What is the capital of France?", "a" * 100_000, "And of Italy?")
    assert chat(ChatClient(f"{api.url}/v1"), "demo", out, said) == 0
    _, first, error, second = out.getvalue().strip().splitlines()
    assert (first, second) == ("The capital of France is Paris.", "The capital of Italy is Rome.")
    assert error.startswith("error: ") and "2048" in error


def test_chat_without_a_server_says_so() -> None:
    out = io.StringIO()
    assert chat(ChatClient("127.0.0.1:9"), "", out, lines()) == 1
    assert out.getvalue() == "error: 127.0.0.1:9: [Errno 111] Connection refused\n"


def test_doctor_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frontend", "doctor", "--json", f"--state-dir={tmp_path / 'none'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    found = {each["subject"]: each for each in json.loads(done.stdout)}
    assert set(found) == {"Python", "Triton", "limits", "ports", "CPU", "GPU", "disk", "models"}
    assert found["Triton"]["text"].endswith("/bin/tritonserver")
    assert found["models"]["text"].startswith("none yet")
    assert done.returncode == int(not all(each["is_well"] for each in found.values()))
