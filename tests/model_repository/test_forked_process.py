"""A real process."""

from __future__ import annotations

import gc
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from model_repository.forked_process import ForkedProcess


def test_what_the_parent_owned_closes_no_file_of_the_child() -> None:
    """A connection in a cycle of the parent was closed in the child once more, when its number was another file's."""
    cycle: list[object] = [*Pipe()]
    cycle.append(cycle)
    del cycle

    def main(connection: Connection) -> None:
        pipes = [Pipe() for _ in range(100)]  # also with the numbers of the connection in the cycle
        gc.collect()
        argument = connection.recv()
        for one, other in pipes:
            one.send(argument)
            assert other.recv() == argument
        connection.send(("returned", argument))

    gc.disable()
    try:
        process = ForkedProcess(main)
        assert process.call("sent") == "sent"
    finally:
        gc.enable()
    process.close()
