"""The Llama architecture written down in numpy, and llama.cpp's logits to compare with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cyllama.llama import llama_cpp as llama

from tests.build_engines.tiny_checkpoint import CONFIG, Weights

type Floats = npt.NDArray[np.float64]

PROMPT = [5, 100, 33, 7, 250, 33, 8, 91, 260, 13, 0, 77]


class Llama:
    """The Llama architecture as its papers and Hugging Face's layout say, in float64.

    Source: RMSNorm arXiv:1910.07467, rotary embeddings arXiv:2104.09864 (the halves of a head are the pairs), grouped
    queries arXiv:2305.13245, SwiGLU arXiv:2002.05202.
    """

    def __init__(self, weights: Weights, config: dict[str, Any] = CONFIG) -> None:
        self._weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
        self._config = config

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """Return the logits after each token, [num_tokens, vocab_size]."""
        hidden = self._weights["model.embed_tokens.weight"][token_ids]
        for layer in range(self._config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            hidden = hidden + self._attention(prefix, self._norm(f"{prefix}input_layernorm", hidden))
            hidden = hidden + self._mlp(prefix, self._norm(f"{prefix}post_attention_layernorm", hidden))
        output = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        return self._norm("model.norm", hidden) @ output.T

    def _norm(self, name: str, hidden: Floats) -> Floats:
        root_mean_square = np.sqrt((hidden**2).mean(-1, keepdims=True) + self._config["rms_norm_eps"])
        return hidden / root_mean_square * self._weights[f"{name}.weight"]

    def _attention(self, prefix: str, hidden: Floats) -> Floats:
        queries, keys, values = (self._heads(f"{prefix}self_attn.{name}_proj", hidden) for name in "qkv")
        queries, keys = self._rotate(queries), self._rotate(keys)
        num_queries_per_key = len(queries) // len(keys)
        keys, values = keys.repeat(num_queries_per_key, axis=0), values.repeat(num_queries_per_key, axis=0)
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(self._config["head_dim"])
        scores[:, ~np.tri(len(hidden), dtype=bool)] = -np.inf  # nobody sees what comes after it
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = shares / shares.sum(-1, keepdims=True) @ values
        return attended.swapaxes(0, 1).reshape(len(hidden), -1) @ self._weights[f"{prefix}self_attn.o_proj.weight"].T

    def _heads(self, name: str, hidden: Floats) -> Floats:
        projected = hidden @ self._weights[f"{name}.weight"].T
        return projected.reshape(len(hidden), -1, self._config["head_dim"]).swapaxes(0, 1)

    def _rotate(self, heads: Floats) -> Floats:
        half = self._config["head_dim"] // 2
        frequencies = self._config["rope_theta"] ** (-np.arange(half) / half)
        angles = np.outer(np.arange(heads.shape[1]), frequencies)
        first, second = heads[..., :half], heads[..., half:]
        rotated = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
        return np.concatenate(rotated, axis=-1)

    def _mlp(self, prefix: str, hidden: Floats) -> Floats:
        gate, up = (hidden @ self._weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return gate / (1 + np.exp(-gate)) * up @ self._weights[f"{prefix}mlp.down_proj.weight"].T


def llama_cpp_logits(path: Path, token_ids: Sequence[int], adapter: Path | None = None) -> Floats:
    """Return llama.cpp's logits after each token, [num_tokens, vocab_size]; with a LoRA adapter or without."""
    llama.disable_logging()
    llama.ggml_backend_load_all()
    model = llama.LlamaModel(str(path), llama.LlamaModelParams())
    params = llama.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
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


def assert_same(converted: Floats, reference: Floats) -> None:
    """Compare up to the precision of F16, in which llama.cpp multiplies."""
    assert reference.std() > 1  # a difference would show
    assert np.abs(converted - reference).max() < 0.03 * reference.std()
