"""A text in the editor of the person."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

_EDITORS = ("nano", "vi")  # if no variable names one


def edited(text: str) -> str:
    """Return the text that the person saves in $VISUAL, $EDITOR or another editor. Only the main thread calls this.

    Raises:
        ValueError: the editor fails, or the text is empty.
    """
    command = _editor()
    with tempfile.TemporaryDirectory(prefix="conch-") as folder:  # has what the editor writes beside the file too
        path = Path(folder, "message.md")
        path.touch(0o600)
        path.write_text(text, encoding="utf-8")
        before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the editor
        try:
            status = subprocess.run([*command, path], check=False).returncode
        except OSError as exc:
            raise ValueError(f"{command[0]}: {exc.strerror}: nothing is sent") from exc
        finally:
            signal.signal(signal.SIGINT, before)
        if status:
            raise ValueError(f"{command[0]} has ended with status {status}: nothing is sent")
        try:
            saved = path.read_text(encoding="utf-8").rstrip()
        except (OSError, ValueError) as exc:
            raise ValueError(f"{command[0]} has left no text in UTF-8: nothing is sent") from exc
    if not saved:
        raise ValueError("the text is empty: nothing is sent")
    return saved


def _editor() -> list[str]:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or next(filter(shutil.which, _EDITORS), "")
    command = shlex.split(named)
    if not command:
        raise ValueError("there is no editor: the variable EDITOR names one")
    return command
