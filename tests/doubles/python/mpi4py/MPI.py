"""The communicator of all ranks, and that of one process, which starts workers. Here a worker is nothing."""

from types import SimpleNamespace

COMM_WORLD = object()
COMM_SELF = SimpleNamespace(Spawn=lambda command, args, maxprocs: SimpleNamespace(Disconnect=lambda: None))


def Get_library_version() -> str:
    """Return the name of the library, with further words behind a comma."""
    return "a double of Open MPI, without processes"
