"""Triton's door to the tokenizer stage, with a fake of the Python backend's module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import model_repository
from model_repository.request_tensors import request_to_tensors
from tests.model_repository.tokenizer.test_stage import STAGE, request

DOOR = Path(model_repository.__file__).parent / "tokenizer" / "1" / "model.py"


class Tensor:
    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self.value = value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self.value


class Request:
    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = [Tensor(name, value) for name, value in tensors.items()]

    def inputs(self) -> list[Tensor]:
        return self._tensors


class Cancelled(Request):
    def is_cancelled(self) -> bool:
        return True


class Waiting(Request):
    def is_cancelled(self) -> bool:
        return False


class Unsure(Request):
    def is_cancelled(self) -> bool:
        raise RuntimeError


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    class Error(SimpleNamespace):
        INVALID_ARG = 3

        def __init__(self, message: str, code: int) -> None:
            super().__init__(message=message, code=code)

    backend = SimpleNamespace(
        Tensor=Tensor,
        TritonError=Error,
        InferenceResponse=lambda tensors=(), error=None: SimpleNamespace(tensors=tensors, error=error),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    monkeypatch.delitem(sys.modules, "model_repository.triton_shell", raising=False)
    spec = importlib.util.spec_from_file_location("tokenizer_door", DOOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    door = module.TritonPythonModel()
    door.stage = STAGE
    yield door
    sys.modules.pop("model_repository.triton_shell", None)  # it holds the fake
    vars(model_repository).pop("triton_shell", None)


def test_a_request_that_nobody_waits_for_is_answered_without_work(model: Any) -> None:
    (response,) = model.execute([Cancelled({})])
    assert response.error.message == "[invalid_value] the request was cancelled"


@pytest.mark.parametrize("kind", [Request, Waiting, Unsure])
def test_others_are_served(model: Any, kind: type[Request]) -> None:
    (response,) = model.execute([kind(request_to_tensors(request()))])
    assert response.error is None
    names = [tensor.name() for tensor in response.tensors]
    assert names == ["prompt_token_ids", "engine_params"]
    assert np.array_equal(response.tensors[0].value, [STAGE.encode(request()).prompt_token_ids])


def test_a_bad_request_does_not_keep_another_from_its_answer(model: Any) -> None:
    bad, good = model.execute([Waiting({}), Waiting(request_to_tensors(request()))])
    assert bad.error.code == 3
    assert good.error is None
