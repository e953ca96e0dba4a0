"""A LoRA adapter of random weights for the tiny checkpoint, in llama.cpp's format."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.build_engines.tiny_checkpoint import CONFIG
from tests.gguf_writing import write_and_close

RANK = 4


def write_adapter(path: Path, seed: int) -> Path:
    """Write an adapter of the first layer's queries and values."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * RANK)
    for name, num_heads in (("attn_q", CONFIG["num_attention_heads"]), ("attn_v", CONFIG["num_key_value_heads"])):
        for side, shape in (("a", (RANK, CONFIG["hidden_size"])), ("b", (num_heads * CONFIG["head_dim"], RANK))):
            writer.add_tensor(f"blk.0.{name}.weight.lora_{side}", random.normal(size=shape).astype(np.float32))
    write_and_close(writer)
    return path
