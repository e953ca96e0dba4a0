"""Reasons why `serve` cannot start or go on. Each message is for the person who runs the command.

LaunchError
├── AlreadyServing          another launcher holds the state directory
├── PortInUse
├── RepositoryInvalid       missing, or without a model
├── SharedMemoryTooSmall
├── LimitTooLow             a limit of the shell that Triton exceeds
├── TemporaryFolderReadOnly
├── TritonNotFound          no server, or a server that cannot run here
├── ChildEnded              tritonserver, one of its stages or the frontend ended
├── NoModelServed
└── NotReadyInTime
"""

from __future__ import annotations

from collections.abc import Sequence


class LaunchError(Exception):
    """The base class.

    Args:
        message: the cause.
        log: the last log lines of the children, to be shown before it.
    """

    def __init__(self, message: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log = log


class AlreadyServing(LaunchError):
    """Another launcher holds the state directory."""


class PortInUse(LaunchError):
    """A chosen port is in use."""


class RepositoryInvalid(LaunchError):
    """The repository is missing, or has no model."""


class SharedMemoryTooSmall(LaunchError):
    """Triton's Python backend would not fit in /dev/shm."""


class LimitTooLow(LaunchError):
    """A limit of the shell (ulimit) would stop Triton."""


class TemporaryFolderReadOnly(LaunchError):
    """Triton cannot make its temporary files."""


class TritonNotFound(LaunchError):
    """No tritonserver is installed, or the installed one cannot run here."""


class ChildEnded(LaunchError):
    """tritonserver, one of its stages or the frontend ended."""


class NoModelServed(LaunchError):
    """No model of the repository could be loaded."""


class NotReadyInTime(LaunchError):
    """A model did not answer before the deadline."""
