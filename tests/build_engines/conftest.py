"""Shared by the tests of building."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from build_engines import cpu_spec
from build_engines.sequence_memory import SequenceMemory
from tests.build_engines.tiny_checkpoint import write_checkpoint

logging.getLogger("gguf").setLevel(logging.WARNING)  # as each command does


@pytest.fixture(autouse=True)
def _without_trial_load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build without the process that loads each GGUF file. Builds of test_built_model.py have it."""
    if request.path.name != "test_built_model.py":
        monkeypatch.setattr(cpu_spec, "check_loads", lambda *_, **__: SequenceMemory(bytes_per_token=256))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny checkpoint of the test's own."""
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Where artifacts go."""
    return tmp_path / "artifacts"
