"""The communicator of all ranks."""

COMM_WORLD = object()
