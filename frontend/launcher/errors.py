"""Reasons why `serve` cannot start or go on. Each message is for the person who runs the command.

LaunchError
├── AlreadyServing          another launcher holds the state directory
├── PortInUse
├── RepositoryInvalid       missing, or without a model
├── SharedMemoryTooSmall
├── LimitTooLow             a limit of the shell that Triton exceeds
├── TemporaryFolderReadOnly
├── TritonNotFound          no server, or a server that cannot run here
├── ChildEnded              tritonserver or the frontend ended
└── NotReadyInTime
"""

from __future__ import annotations


class LaunchError(Exception):
    """The base class."""


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
    """tritonserver or the frontend ended; the message ends with its last log lines."""


class NotReadyInTime(LaunchError):
    """A model did not answer before the deadline."""
