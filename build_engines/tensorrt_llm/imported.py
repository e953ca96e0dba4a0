"""Converts checkpoints in older file formats to safetensors and tokenizer.json, which a build reads."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from build_engines import artifact
from build_engines.tensorrt_llm import import_checkpoint
from build_engines.tensorrt_llm.tool import ToolRun
from build_engines.weight_files import INDEX_FILE, SINGLE_FILE

logger = logging.getLogger(__name__)

PYTORCH_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def imported(checkpoint: Path, work_dir: Path, num_bytes: int, run: Callable[[ToolRun], None]) -> Path:
    """Return a checkpoint with safetensors and tokenizer.json: the given one if it has them, else a copy of it.

    The copy is made once, by transformers. What else may be missing is left to the check of the checkpoint.

    Args:
        checkpoint: a folder.
        work_dir: for the copy.
        num_bytes: size of the weights.
        run: runs a tool.

    Raises:
        BuildError: the tool failed.
    """
    has_weights = (checkpoint / SINGLE_FILE).is_file() or (checkpoint / INDEX_FILE).is_file()
    sources = [*checkpoint.glob(PYTORCH_FILES[0]), *checkpoint.glob("tokenizer.model")]
    if not sources or (has_weights and (checkpoint / "tokenizer.json").is_file()):
        return checkpoint
    states = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.iterdir())
    target = work_dir / f"imported-{hashlib.sha256(repr(states).encode()).hexdigest()[:12]}"
    if not target.is_dir():
        work_dir.mkdir(parents=True, exist_ok=True)
        logger.info("import      %s has no safetensors or no tokenizer.json: transformers makes them", checkpoint)
        with artifact.written_aside(target) as aside:
            run(
                ToolRun(
                    name="import",
                    command=(sys.executable, import_checkpoint.__file__, str(checkpoint.resolve()), str(aside)),
                    folder=work_dir,
                    log=work_dir / "import.log",
                    output=aside,
                    num_bytes=num_bytes,
                )
            )
    return target
