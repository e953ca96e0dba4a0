"""The executor in which the ranks above 0 work until rank 0 ends."""

from __future__ import annotations

entered: list[object] = []  # the communicators of executors that ended


class MPICommExecutor:
    """On a worker's rank it yields nothing, and returns when rank 0 has ended."""

    def __init__(self, comm: object) -> None:
        self._comm = comm

    def __enter__(self) -> None:
        entered.append(self._comm)

    def __exit__(self, *exception: object) -> None:
        return None
