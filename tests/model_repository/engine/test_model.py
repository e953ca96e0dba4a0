"""Triton's door to the engine stage: whether the model is ready, and whether it is to be left alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import model_repository
from model_repository.errors import EngineFailed, InvalidRequest

DOOR = Path(model_repository.__file__).parent / "engine" / "1" / "model.py"


class Engine:
    """An engine that works until it is told not to."""

    error: Exception | None = None

    is_draining = False

    def stats(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "model_repository.triton_shell", raising=False)
    spec = importlib.util.spec_from_file_location("engine_door", DOOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    door = module.TritonPythonModel()
    door.engine = Engine()
    yield door
    sys.modules.pop("model_repository.triton_shell", None)  # it holds the fake
    vars(model_repository).pop("triton_shell", None)


def test_it_is_ready_while_its_engine_works(model: Any) -> None:
    assert model.is_ready() is True
    model.engine.error = EngineFailed("the runtime is broken")
    assert model.is_ready() is False


def test_it_is_drained_until_it_is_told_otherwise(model: Any) -> None:
    for is_draining in (True, False):
        model._control([json.dumps({"drain": is_draining}).encode()])
        assert model.engine.is_draining is is_draining
    with pytest.raises(InvalidRequest, match="expected"):
        model._control([b'{"drain": 1}'])
