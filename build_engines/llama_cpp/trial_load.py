"""Tries whether llama.cpp loads a model, in a process of its own: some files make the library end the process.

Run as a program: `python -m build_engines.llama_cpp.trial_load MODEL [PROJECTOR]`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from build_engines.errors import BuildError

_ERROR = 4  # ggml.h: enum ggml_log_level


def check_loads(name: str, model: Path, projector: Path | None) -> None:
    """Check that llama.cpp loads a model, if it is installed. The weights are not read.

    Args:
        name: of the model, for the error.
        model: a GGUF file, or the first of a split model.
        projector: a GGUF file with which the model reads images.

    Raises:
        BuildError: it does not; with llama.cpp's reason.
    """
    if importlib.util.find_spec("cyllama") is None:
        return
    command = [sys.executable, "-P", "-m", __name__, str(model), *([] if projector is None else [str(projector)])]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [f"status {done.returncode}", *filter(None, done.stderr.splitlines())]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"{name}: llama.cpp does not load it: {reason}")


def _load(model: str, projector: str | None = None) -> None:
    from cyllama.llama import llama_cpp as llama

    def log(level: int, text: str) -> None:
        if level == _ERROR:
            sys.stderr.write(text)
            sys.stderr.flush()

    llama.set_log_callback(log)
    llama.ggml_backend_load_all()
    params = llama.LlamaModelParams()
    params.no_alloc, params.load_mode = True, 0  # llama_load_mode: none
    loaded = llama.LlamaModel(model, params)
    if projector is not None:
        from model_repository.engine.llama_cpp.image_prompts import load_projector

        load_projector(Path(projector), loaded, 1)


if __name__ == "__main__":
    try:
        _load(*sys.argv[1:])
    except Exception as exc:
        sys.exit(str(exc))
