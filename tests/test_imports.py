"""Every module of the product is imported; `make lowest` does so with the lowest versions of its libraries."""

from __future__ import annotations

import importlib
from pathlib import Path

PROJECT = Path(__file__).parents[1]
# What only the images of Triton and TensorRT-LLM have.
IN_IMAGES = {"tensorrt_llm", "torch", "triton_python_backend_utils"}


def test_every_module_is_imported():
    failed: dict[str, str] = {}
    for package in ("frontend", "model_repository", "build_engines"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
            if path.parent.name == "1":  # a model of Triton, in no package
                continue
            try:
                importlib.import_module(name.removesuffix(".__init__"))
            except ModuleNotFoundError as exc:
                if exc.name not in IN_IMAGES:
                    failed[name] = str(exc)
            except Exception as exc:
                failed[name] = repr(exc)
    assert failed == {}
