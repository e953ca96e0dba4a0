"""Every module of the product is imported, also by `make lowest` and at the end of the builds of the GPU images."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
# Only the images of TensorRT-LLM have these; only other environments have the others.
OF_GPU_IMAGES = {"tensorrt_llm", "torch", "triton_python_backend_utils"}
OF_OTHERS = {"asyncpg", "cyllama", "markdown_it", "rich"}


def test_every_module_is_imported(monkeypatch):
    elsewhere = OF_GPU_IMAGES if importlib.util.find_spec("cyllama") else OF_GPU_IMAGES | OF_OTHERS
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)  # not where it is: the import starts MPI, and needs a driver
    failed: dict[str, str] = {}
    for package in ("frontend", "model_repository", "build_engines"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
            if path.parent.name == "1":  # a model of Triton, in no package
                continue
            try:
                importlib.import_module(name.removesuffix(".__init__"))
            except ModuleNotFoundError as exc:
                if (exc.name or "").partition(".")[0] not in elsewhere:
                    failed[name] = str(exc)
            except Exception as exc:
                failed[name] = repr(exc)
    assert failed == {}
