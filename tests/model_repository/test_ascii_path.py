"""Paths for a Python without a locale, in a process that has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_python_without_a_locale_opens_every_folder(tmp_path: Path) -> None:
    (tmp_path / "jürgen").mkdir()
    (tmp_path / "jürgen" / "file").write_text("text")
    source = "from pathlib import Path; from model_repository.ascii_path import ascii_path\n"
    source += f"for _ in range(2): print(Path(ascii_path({str(tmp_path / 'jürgen')!a}), 'file').read_text())"
    command = [sys.executable, "-X", "utf8=0", "-c", source]
    done = subprocess.run(command, cwd=tmp_path, env={"LC_ALL": "C"}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("text\ntext\n", "")
