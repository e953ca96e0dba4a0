"""The first steps of a command, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.another_machine import BLOCKED, CLOSED, PROCESS_1, needs_root
from tests.processes import parent_of
from tests.waiting import DEADLINE_S

_PREPARE = "import os, signal, sys, time\nfrom model_repository.system.process_start import prepare_process\n"
_PREPARE += "prepare_process()\n"
# Two orphans that end, then a line once no process is a zombie.
_ORPHANS = """
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(0.05)
        os._exit(0)
    os.wait()
def states():
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try: yield open(f"/proc/{name}/stat").read().rpartition(") ")[2][0]
        except OSError: pass
while len(found := list(states())) > 2: time.sleep(0.01)
print('Z' in found, os.getpid(), flush=True)
time.sleep(600)
"""


def test_signals_that_the_parent_has_blocked_end_it() -> None:
    command = [*BLOCKED, sys.executable, "-c", _PREPARE + "print(flush=True); time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.terminate()
        try:
            assert process.wait(DEADLINE_S) == -signal.SIGTERM
        finally:
            process.kill()


def test_closed_streams_are_open_and_their_numbers_are_taken() -> None:
    source = "print('x', file=sys.stderr); print('y', flush=True); sys.stdin.read()\n"
    source += "sys.exit(7 if [os.dup(0), *map(os.get_inheritable, range(3))] == [3, True, True, True] else 1)"
    done = subprocess.run([*CLOSED, sys.executable, "-c", _PREPARE + source], check=False)
    assert done.returncode == 7


@needs_root()
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_1_waits_for_orphans_passes_signals_on_and_ends_as_the_command_does(number: signal.Signals) -> None:
    """Zombies of stages stayed for good, and a signal without a handler had no effect."""
    command = [*PROCESS_1, sys.executable, "-W", "error::DeprecationWarning", "-c", _PREPARE + _ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        try:
            assert outer.stdout.readline() == "False 2\n"
            processes = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
            [first] = [each for each in processes if parent_of(each) == outer.pid]
            os.kill(first, number)
            assert outer.wait(DEADLINE_S) == 128 + number
        finally:
            outer.kill()
