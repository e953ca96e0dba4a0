"""Triton's door to the processes that load models for the arbiter. It serves no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_repository import python_backend
from model_repository.arbiter.loading import Loader
from model_repository.errors import Unsupported


class TritonPythonModel:
    """One of LOADERS."""

    def initialize(self, args: dict[str, str]) -> None:
        """Wait for orders of the arbiter."""
        with python_backend.starting(args):
            self.loader = Loader(args["model_name"], _load)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Refuse each request."""
        error = Unsupported("this stage serves no requests")
        return [python_backend.error_response(error) for _ in requests]

    def finalize(self) -> None:
        """Take no more orders."""
        self.loader.close()


def _load(names: Sequence[str]) -> None:
    for name in names:
        python_backend.load(name)
