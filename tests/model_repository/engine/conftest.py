"""Fixtures of several tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from tests.build_engines.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built artifact of the tiny checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    return build(CpuSpec(model_id="tiny", checkpoint=write_checkpoint(folder / "checkpoint")), folder)
