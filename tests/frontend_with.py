"""Runs a command of `python -m frontend` with other values of its constants, for tests of other processes.

python -m tests.frontend_with MODULE:NAME=NUMBER ... COMMAND ...
"""

from __future__ import annotations

import importlib
import re
import sys
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frontend.launcher.launcher import Launcher

# Polls are frequent, and may wait long for an answer: a healthy engine of a busy machine answers late. The time is
# limited, since a poll may get no answer when the engine dies.
PATIENT = (
    "frontend.triton.health_monitor:STATS_INTERVAL_S=0.2",
    "frontend.triton.health_monitor:STATS_TIMEOUT_S=10",
    "frontend.triton.health_monitor:TEXT_STAGE_TIMEOUT_S=20",
)

_CONSTANT = re.compile(r"[\w.]+:\w+=[\d.]+")


def command_with(*constants: str) -> list[str]:
    """Return the beginning of a command line, up to the name of the command."""
    return [sys.executable, "-m", "tests.frontend_with", *constants]


def change_frontend(launcher: Launcher, *constants: str) -> None:
    """Give other constants to the frontend of a launcher that has not started it yet."""
    launcher.frontend.command = (*command_with(*constants), *launcher.frontend.command[4:])


if __name__ != "tests.frontend_with":  # each process of several workers runs this module again, as `__mp_main__`
    constants = list(takewhile(_CONSTANT.fullmatch, sys.argv[1:]))
    for constant in constants:
        module, name, value = re.split("[:=]", constant)
        setattr(importlib.import_module(module), name, float(value))

if __name__ == "__main__":
    from frontend.__main__ import main

    sys.exit(main(sys.argv[1 + len(constants) :]))
