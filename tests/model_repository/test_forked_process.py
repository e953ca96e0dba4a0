"""A process that another one forks."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from multiprocessing import Pipe
from model_repository.forked_process import ForkedProcess

def main(connection):
    pipes = [Pipe() for _ in range(100)]  # also with the numbers of the connection in the cycle
    gc.collect()
    argument = connection.recv()
    for one, other in pipes:
        one.send(argument)
        assert other.recv() == argument
    connection.send(("returned", argument))

gc.disable()
cycle = [*Pipe()]
cycle.append(cycle)
del cycle
process = ForkedProcess(main)
assert process.call("sent") == "sent"
process.close()
"""


def test_what_the_parent_owned_closes_no_file_of_the_child() -> None:
    """A connection in a cycle of the parent was closed in the child once more, when its number was another file's."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
