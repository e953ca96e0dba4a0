"""What the double computes with: a Llama in numpy with a KV cache, or for folders without weights, hashed logits."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, load_file

type Floats = np.ndarray[Any, np.dtype[np.float32]]
type Weights = Mapping[str, Floats]

_EMBEDDING = "model.embed_tokens.weight"


class State(Protocol):
    """One sequence inside a model."""

    def feed(self, token_ids: Sequence[int]) -> Floats:
        """Take further tokens; return the logits behind each, [num_tokens, vocab_size]."""
        ...


class Model:
    """The weights of a folder.

    Args:
        folder: a checkpoint, or an engine whose files hold a checkpoint's tensors.
        config: its hyperparameters, by Hugging Face's names or TensorRT-LLM's.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.vocab_size = int(config["vocab_size"])
        self._config = config
        self._weights = {name: tensor.astype(np.float32) for name, tensor in _read_weights(folder).items()}

    def start(self, adapter: Path | None) -> State:
        """Return a new sequence, under a LoRA adapter or none."""
        if _EMBEDDING not in self._weights:
            if adapter:
                self._load(adapter)
            return _HashedState(self.vocab_size, str(adapter or ""))
        return _LlamaState(self._adapted(adapter) if adapter else self._weights, self._config)

    @functools.cache  # noqa: B019  # a double lives as long as its process
    def _load(self, adapter: Path) -> None:
        for path in adapter.iterdir():
            json.loads(path.read_text(encoding="utf-8"))

    @functools.cache  # noqa: B019
    def _adapted(self, adapter: Path) -> Weights:
        settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(adapter / "adapter_model.safetensors")
        weights = dict(self._weights)
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            change = tensors[name.replace("lora_A", "lora_B")].astype(np.float32) @ tensors[name].astype(np.float32)
            weights[target] = weights[target] + change * (settings["lora_alpha"] / settings["r"])
        return weights


def _read_weights(folder: Path) -> Weights:
    weights: dict[str, Floats] = {}
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.engine"))):
        try:
            weights |= load(path.read_bytes())
        except SafetensorError:  # an engine of somebody else's making
            continue
    return weights


class _HashedState:
    """Logits that depend on the last two tokens alone, with a clear favourite."""

    def __init__(self, vocab_size: int, salt: str) -> None:
        self._vocab_size, self._salt = vocab_size, salt
        self._last = (0, 0)

    def feed(self, token_ids: Sequence[int]) -> Floats:
        """Take further tokens."""
        rows = []
        for token_id in token_ids:
            self._last = (self._last[1], token_id)
            digest = hashlib.blake2b(f"{self._salt} {self._last}".encode(), digest_size=8).digest()
            rows.append(np.random.default_rng(int.from_bytes(digest)).normal(scale=2.0, size=self._vocab_size))
        return np.array(rows, dtype=np.float32)


class _LlamaState:
    """The Llama architecture over its keys and values so far."""

    def __init__(self, weights: Weights, config: Mapping[str, Any]) -> None:
        self._weights = weights
        num_heads = config["num_attention_heads"]
        self._head_size = config.get("head_dim") or config.get("head_size") or config["hidden_size"] // num_heads
        self._epsilon = config.get("rms_norm_eps") or config.get("norm_epsilon")
        base = config.get("rope_theta") or config.get("rotary_base")
        half = self._head_size // 2
        self._frequencies = base ** (-np.arange(half) / half)
        self._cache: list[tuple[Floats, Floats]] = []  # keys and values of each layer, [heads, tokens, head size]
        self._num_layers = config["num_hidden_layers"]
        self._num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> Floats:
        """Take further tokens."""
        hidden = self._weights[_EMBEDDING][list(token_ids)]
        positions = np.arange(self._num_tokens, self._num_tokens + len(token_ids))
        angles = np.outer(positions, self._frequencies)
        rotation = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        for layer in range(self._num_layers):
            prefix = f"model.layers.{layer}."
            hidden = hidden + self._attend(layer, prefix, self._norm(f"{prefix}input_layernorm", hidden), rotation)
            hidden = hidden + self._mlp(prefix, self._norm(f"{prefix}post_attention_layernorm", hidden))
        self._num_tokens += len(token_ids)
        output = self._weights.get("lm_head.weight", self._weights[_EMBEDDING])
        logits: Floats = self._norm("model.norm", hidden) @ output.T
        return logits

    def _norm(self, name: str, hidden: Floats) -> Floats:
        root_mean_square = np.sqrt((hidden**2).mean(-1, keepdims=True) + self._epsilon)
        scaled: Floats = hidden / root_mean_square * self._weights[f"{name}.weight"]
        return scaled

    def _attend(self, layer: int, prefix: str, hidden: Floats, rotation: tuple[Floats, Floats]) -> Floats:
        queries, keys, values = (self._heads(f"{prefix}self_attn.{name}_proj", hidden) for name in "qkv")
        queries, keys = _rotate(queries, rotation), _rotate(keys, rotation)
        if layer < len(self._cache):
            past_keys, past_values = self._cache[layer]
            keys, values = np.concatenate([past_keys, keys], 1), np.concatenate([past_values, values], 1)
            self._cache[layer] = keys, values
        else:
            self._cache.append((keys, values))
        num_queries_per_key = len(queries) // len(keys)
        grouped = queries.reshape(len(keys), num_queries_per_key, *queries.shape[1:])
        scores = grouped @ keys[:, np.newaxis].swapaxes(-1, -2) / np.sqrt(self._head_size)
        scores[..., ~np.tri(len(hidden), keys.shape[1], self._num_tokens, dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = shares / shares.sum(-1, keepdims=True) @ values[:, np.newaxis]
        merged = attended.reshape(queries.shape).swapaxes(0, 1).reshape(len(hidden), -1)
        projected: Floats = (merged @ self._weights[f"{prefix}self_attn.o_proj.weight"].T).astype(np.float32)
        return projected

    def _heads(self, name: str, hidden: Floats) -> Floats:
        projected = hidden @ self._weights[f"{name}.weight"].T
        return projected.reshape(len(hidden), -1, self._head_size).swapaxes(0, 1)

    def _mlp(self, prefix: str, hidden: Floats) -> Floats:
        gate, up = (hidden @ self._weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        down: Floats = gate / (1 + np.exp(-gate)) * up @ self._weights[f"{prefix}mlp.down_proj.weight"].T
        return down


def _rotate(heads: Floats, rotation: tuple[Floats, Floats]) -> Floats:
    cosines, sines = rotation
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
