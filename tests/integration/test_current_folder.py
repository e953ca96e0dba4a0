"""`conch` in a folder of any name and content, such as that of a downloaded model: nothing is imported from there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import Api
from tests.integration.stack import DEMO_CHECKPOINT
from tests.integration.test_serve import printed_curl
from tests.launching import FREE_PORTS
from tests.waiting import DEADLINE_S

CONCH = Path(sys.executable).with_name("conch")
MODULES = {*sys.stdlib_module_names, *packages_distributions(), "triton_python_backend_utils", "sitecustomize"}
TRAP = "import sys\nopen({imported!r}, 'a').write(f'{{__name__}}: {{sys.orig_argv}}\\n')\nraise SystemExit\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint with a module of each name that Python could import. Triton pastes paths into a shell."""
    folder, imported = tmp_path / "jürgen's (new) & old" / "model", tmp_path / "imported"
    shutil.copytree(DEMO_CHECKPOINT, folder)
    for name in MODULES:
        (folder / f"{name}.py").write_text(TRAP.format(imported=str(imported)))
    yield folder
    assert not imported.exists(), imported.read_text()


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in the folder; at the end Ctrl-C ends it well."""
    command = [str(CONCH), *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=DEADLINE_S) and process.returncode == 0
        finally:
            process.kill()  # nothing, if it has ended


def test_a_model_is_built_and_served_in_its_own_folder(folder: Path) -> None:
    with running(folder, "serve", ".", "--state-dir=state", "--workers=2", *FREE_PORTS) as process:
        curl = printed_curl(process)
        assert Api(curl[1]).post("", curl[curl.index("-d") + 1].encode(), {"Content-Type": "application/json"}).text


def test_a_frontend_of_several_workers_imports_nothing_from_there(folder: Path) -> None:
    with running(folder, "api", "--triton=127.0.0.1:9", "--port=0", "--workers=2") as process:
        assert process.stdout is not None
        assert any("listens on" in line for line in process.stdout)


@pytest.mark.parametrize(
    "words",
    [
        "adapter --help",
        "build . --state-dir=state",
        "chat --url=127.0.0.1:9",
        "completion bash",
        "doctor",
        "drain --triton=127.0.0.1:9",
        "health --triton=127.0.0.1:9",
        "keys list --file=keys.json",
        "list",
        "plan --all",
        "reference docs",
        "render state --repository=state",
        "run . --port=no",
        "triton --repository=none",
        "verify none",
    ],
)
def test_a_command_imports_nothing_from_there(folder: Path, words: str) -> None:
    KeyFile(folder / "keys.json").add("alice")
    command = [str(CONCH), *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr
