"""The folder of a user's artifacts and running servers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "CONCH_HOME"


def conch_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return CONCH_HOME, or without it `conch` in the user's folder of data.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    if given := environment.get(HOME_VARIABLE):
        return Path(given)
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "conch"


def add_home(command: argparse.ArgumentParser, text: str) -> None:
    """Add the option --home. Its help begins with `text`, which names the contents of the folder."""
    default = conch_home()
    command.add_argument(
        "--home", type=Path, default=default, metavar="DIR", help=f"{text} (default: {HOME_VARIABLE}, or {default})"
    )
