"""A tiny Mamba of random weights: a recurrent model, with one state for all tokens of a sequence."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.build_engines.tiny_checkpoint import CONFIG
from tests.gguf_writing import write_and_close

_SIZE, _INNER, _STATES, _WIDTH, _RANK = 48, 96, 16, 4, 3


def write_mamba(path: Path) -> Path:
    """Write a GGUF file without a tokenizer, and return its path."""
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(str(path), "mamba")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(_SIZE)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(1)
    writer.add_ssm_conv_kernel(_WIDTH)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATES)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(CONFIG["vocab_size"])
    shapes = {
        "token_embd.weight": (CONFIG["vocab_size"], _SIZE),
        "output_norm.weight": (_SIZE,),
        "blk.0.attn_norm.weight": (_SIZE,),
        "blk.0.ssm_in.weight": (2 * _INNER, _SIZE),
        "blk.0.ssm_conv1d.weight": (_INNER, _WIDTH),
        "blk.0.ssm_conv1d.bias": (_INNER,),
        "blk.0.ssm_x.weight": (_RANK + 2 * _STATES, _INNER),
        "blk.0.ssm_dt.weight": (_INNER, _RANK),
        "blk.0.ssm_dt.bias": (_INNER,),
        "blk.0.ssm_d": (_INNER,),
        "blk.0.ssm_out.weight": (_SIZE, _INNER),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.add_tensor("blk.0.ssm_a", -rng.uniform(0.05, 0.5, size=(_INNER, _STATES)).astype(np.float32))
    write_and_close(writer)
    return path
