"""Writes the demo model, without its adapters, as a GGUF file in f32: `python -m tests.workshop.cards.demo_file F`."""

from __future__ import annotations

import sys
from pathlib import Path

from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.model_source import DEMO

if __name__ == "__main__":
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), Path(sys.argv[1]), "f32")
