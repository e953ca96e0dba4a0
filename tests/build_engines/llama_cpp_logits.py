"""llama.cpp's logits of a GGUF file, computed as the runtime does with precision f32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cyllama.llama import llama_cpp as llama

type Floats = npt.NDArray[np.float64]

PROMPT = [5, 100, 33, 7, 250, 33, 8, 91, 260, 13, 0, 77]
_GGML_TYPE_F32 = 0
_FLASH_ATTN_DISABLED = 0


def llama_cpp_logits(path: Path, token_ids: Sequence[int], adapter: Path | None = None) -> Floats:
    """Return the logits after each token, [num_tokens, vocab_size]; with a LoRA adapter or without."""
    llama.disable_logging()
    llama.ggml_backend_load_all()
    model = llama.LlamaModel(str(path), llama.LlamaModelParams())
    params = llama.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    params.type_k = params.type_v = _GGML_TYPE_F32
    params.flash_attn_type = _FLASH_ATTN_DISABLED
    context = llama.LlamaContext(model, params)
    if adapter is not None:
        context.set_adapters_lora([(model.lora_adapter_init(str(adapter)), 1.0)])
    batch = llama.LlamaBatch(n_tokens=len(token_ids), embd=0, n_seq_max=1)
    for position, token_id in enumerate(token_ids):
        batch.add(token_id, position, [0], True)
    context.decode(batch)
    logits = np.array([context.get_logits_ith(index) for index in range(len(token_ids))])
    batch.close()
    context.close()
    model.close()
    return logits


def assert_same(computed: Floats, expected: Floats) -> None:
    """Compare up to the precision of F16, in which llama.cpp multiplies."""
    assert expected.std() > 1  # a difference would show
    assert np.abs(computed - expected).max() < 0.03 * expected.std()
