"""`conch` in a folder of any name and content, such as that of a downloaded model: nothing is imported from there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import Api
from tests.integration.stack import DEMO_CHECKPOINT
from tests.integration.test_serve import printed_curl
from tests.launching import FREE_PORTS, running
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


def test_a_model_is_built_and_served_in_its_own_folder(folder: Path, tmp_path: Path) -> None:
    words = ["serve", ".", "--home=state", "--workers=2", *FREE_PORTS]
    with running(tmp_path, *words, args=[CONCH, *words], cwd=folder) as serve:
        curl = printed_curl(serve)
        assert Api(curl[1]).post("", curl[curl.index("-d") + 1].encode(), {"Content-Type": "application/json"}).text
        serve.process.send_signal(signal.SIGINT)
        assert serve.status() == 0


@pytest.mark.parametrize(
    "words",
    [
        "completion bash",
        "health --triton=127.0.0.1:9",
        "keys list --file=keys.json",
        "triton --repository=none",
    ],
)
def test_a_command_imports_nothing_from_there(folder: Path, words: str) -> None:
    KeyFile(folder / "keys.json").add("alice")
    command = [str(CONCH), *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr
