"""Weights that are loaded while the arbiter follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_repository.contract import engine_file
from model_repository.contract.engine_file import begin_load, share_of_load, stop_engine
from model_repository.engine.llama_cpp.library import load_weights


@pytest.fixture
def weights(tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_file, "_INTERVAL_S", 0.0)
    for name in ("_own", "_own_stop"):
        monkeypatch.setattr(engine_file, name, None)
    begin_load("a")
    return tiny_artifact / "model.gguf"


def test_the_share_is_told_up_to_the_end(weights: Path) -> None:
    load_weights(weights)
    assert share_of_load("a") == 1.0


def test_a_load_that_is_stopped_fails(weights: Path) -> None:
    stop_engine("a")
    with pytest.raises((OSError, RuntimeError, ValueError, MemoryError)):
        load_weights(weights)
