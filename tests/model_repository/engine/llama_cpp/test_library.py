"""Weights that are loaded while the arbiter follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_repository.contract import arbiter_files
from model_repository.contract.arbiter_files import share_of_load, stop_load, told_progress
from model_repository.engine.llama_cpp.library import load_weights


@pytest.fixture
def weights(tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arbiter_files, "_INTERVAL_S", 0.0)
    return next(tiny_artifact.rglob("*.gguf"))


def test_the_share_is_told_up_to_the_end(weights: Path) -> None:
    with told_progress("a"):
        load_weights(weights)
        assert share_of_load("a") == 1.0


def test_a_load_that_is_stopped_fails(weights: Path) -> None:
    with told_progress("a"):
        stop_load("a")
        with pytest.raises((OSError, RuntimeError, ValueError, MemoryError)):
            load_weights(weights)
