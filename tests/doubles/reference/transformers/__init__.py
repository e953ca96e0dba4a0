"""A test double of the parts of transformers that the GPU acceptance kit uses: the double's Llama."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from tensorrt_llm._model import Model


@dataclass
class CausalLMOutput:
    """The output of a forward pass."""

    logits: torch.Tensor  # [num_sequences, num_tokens, vocab_size]


class PreTrainedModel:
    """A model, under an adapter or none."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.adapter: Path | None = None

    def eval(self) -> Self:
        """Return it, without dropout."""
        return self

    def __call__(self, input_ids: torch.Tensor) -> CausalLMOutput:
        [token_ids] = input_ids.tolist()
        return CausalLMOutput(torch.from_numpy(self.model.start(self.adapter).feed(token_ids)[None]))


class AutoModelForCausalLM:
    """Loads checkpoints."""

    @staticmethod
    def from_pretrained(folder: str, *, dtype: str) -> PreTrainedModel:
        """Return the model of a folder."""
        assert dtype == "float32", "the double computes in 32 bits"
        return PreTrainedModel(Model(Path(folder), json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))))
