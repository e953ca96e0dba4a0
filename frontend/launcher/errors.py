"""What keeps `serve` from starting or from going on. Each is a clear message for whoever ran the command.

LaunchError
├── AlreadyServing          another launcher holds the state directory
├── PortInUse
├── RepositoryInvalid       missing, or nothing in it to serve
├── SharedMemoryTooSmall
├── LimitTooLow             a limit of the shell that Triton exceeds
├── TritonNotFound          no server, or one that cannot run here
├── ChildEnded              tritonserver or the frontend died
└── NotReadyInTime
"""

from __future__ import annotations


class LaunchError(Exception):
    """The base class."""


class AlreadyServing(LaunchError):
    """Another launcher holds the state directory."""


class PortInUse(LaunchError):
    """A port that the launcher was told to use is taken."""


class RepositoryInvalid(LaunchError):
    """The repository is missing, or there is nothing in it to serve."""


class SharedMemoryTooSmall(LaunchError):
    """Triton's Python backend would not fit in /dev/shm."""


class LimitTooLow(LaunchError):
    """A limit of the shell (ulimit) would stop Triton."""


class TritonNotFound(LaunchError):
    """There is no tritonserver, or none that can run here."""


class ChildEnded(LaunchError):
    """tritonserver or the frontend died; the message ends with its last log lines."""


class NotReadyInTime(LaunchError):
    """A model did not answer before the deadline."""
