"""The memory that models may hold."""

from __future__ import annotations

import argparse

import pytest

from model_repository.system.model_memory import add_model_memory, model_memory_bytes


def test_models_may_hold_the_given_memory_or_most_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_repository.system.model_memory.memory_bytes", lambda: 1000)
    assert (model_memory_bytes(None), model_memory_bytes(70)) == (900, 70)


def test_the_option_is_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_model_memory(parser, "memory")
    assert parser.parse_args(["--model-memory=8Gi"]).model_memory == 8 << 30
    assert parser.parse_args([]).model_memory is None
    with pytest.raises(SystemExit):
        parser.parse_args(["--model-memory=8x"])
    assert "--model-memory: 8x: expected a number of bytes above 0, such as 500M" in capsys.readouterr().err
