"""A process that another one forks."""

from __future__ import annotations

import subprocess
import sys

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
