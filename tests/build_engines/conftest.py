"""Shared by the tests of building."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_engines.tiny_checkpoint import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny checkpoint of the test's own."""
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Where artifacts go."""
    return tmp_path / "artifacts"
