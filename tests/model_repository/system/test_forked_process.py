"""A process that another one forks."""

from __future__ import annotations

import gc
import subprocess
import sys

from model_repository.system.forked_process import ForkedProcess

SCRIPT = """
import gc, os
from multiprocessing import Pipe
from model_repository.system.forked_process import ForkedProcess

def main(connection):
    pipes = [Pipe() for _ in range(100)]  # also with the parent's numbers, if they were free
    gc.collect()
    log.write(b"line")
    log.close()
    argument = connection.recv()
    for one, other in pipes:
        one.send(argument)
        assert other.recv() == argument
    connection.send(("returned", argument))

gc.disable()
log = open(os.devnull, "wb", buffering=0)
cycle = [*Pipe()]
cycle.append(cycle)
del cycle
process = ForkedProcess(main)
assert process.call("sent") == "sent"
process.close()
"""


def test_files_that_the_parent_owned_are_none_of_the_childs() -> None:
    """Log lines to a file of the parent went into a pipe of the child, and the garbage collector closed another."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_collects_no_objects_of_its_parent() -> None:
    """The collection of a large parent's took longer than a whole call may take."""
    process = ForkedProcess(lambda connection: connection.send(("returned", len(gc.get_objects()))))
    assert process.call(None) < len(gc.get_objects()) // 100
    process.close()
