"""A fake of the module of Triton's Python backend, and the door of a stage that runs on it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy.typing as npt
import pytest

import model_repository


class Tensor:
    def __init__(self, name: str, value: npt.NDArray[Any]) -> None:
        self._name = name
        self.value = value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.value


class Request:
    """A request with these tensors; `sent` has the responses to it, and their flags."""

    def __init__(
        self,
        tensors: Mapping[str, npt.NDArray[Any]],
        *,
        is_cancelled: bool = False,
        on_response: Callable[[Any], None] = lambda response: None,
    ) -> None:
        self._tensors = [Tensor(name, value) for name, value in tensors.items()]
        self._is_cancelled = is_cancelled
        self._on_response = on_response
        self.sent: list[tuple[Any, int]] = []

    def request_id(self) -> str:
        return "req_abc"

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def get_response_sender(self) -> Any:
        return SimpleNamespace(send=self._send, is_cancelled=self.is_cancelled)

    def _send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append((response, flags))
        if response is not None:
            self._on_response(response)


class _Error(SimpleNamespace):
    INVALID_ARG = 3
    INTERNAL = 13
    UNAVAILABLE = 14

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message=message, code=code)


class _MetricFamily:
    COUNTER = GAUGE = 0

    def __init__(self, **_: Any) -> None:
        self.Metric = lambda labels: SimpleNamespace(set=lambda value: None, increment=lambda value: None)


BACKEND = SimpleNamespace(
    Tensor=Tensor,
    TritonError=_Error,
    MetricFamily=_MetricFamily,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    InferenceResponse=lambda tensors=(), error=None: SimpleNamespace(tensors=tensors, error=error),
)


@contextlib.contextmanager
def stage_door(stage: str) -> Iterator[Any]:
    """Yield the model of a stage, as Triton has it before it initializes the model."""
    shell = "model_repository.python_backend"
    spec = importlib.util.spec_from_file_location(
        f"{stage}_door", Path(model_repository.__file__).parent / stage / "1" / "model.py"
    )
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", BACKEND)
        patch.delitem(sys.modules, shell, raising=False)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            yield module.TritonPythonModel()
        finally:
            sys.modules.pop(shell, None)  # it holds the fake
            vars(model_repository).pop("python_backend", None)
