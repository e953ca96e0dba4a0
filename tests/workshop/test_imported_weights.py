"""The copy that a build makes of a checkpoint with PyTorch's own files, by the real libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from build_engines.tensorrt_llm.imported import imported
from build_engines.tensorrt_llm.tool import run_tool

TEXT = "Triton serves language models. It streams each token at once. 0123456789\n"


def test_the_copy_has_the_same_weights_and_the_same_tokens(tmp_path: Path) -> None:
    """Run pip install torch transformers sentencepiece."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path / "checkpoint"
    weights = _write_checkpoint(folder, torch, transformers, sentencepiece)
    copy = imported(folder, tmp_path / "work", 1, run_tool)
    found = load_file(copy / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], tensor.numpy()) for name, tensor in weights.items())
    assert json.loads((copy / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    expected = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    for text in ("Hello, it serves models", "two  spaces", "\u65e5\u672c \U0001f642", "a\nb"):
        assert tokenizer.encode(text).ids == [1, *expected.encode(text)]


def _write_checkpoint(folder: Path, torch: Any, transformers: Any, sentencepiece: Any) -> dict[str, Any]:
    """Write a tiny Llama as in MythoMax's repository, and return its weights."""
    folder.mkdir()
    (folder.parent / "text.txt").write_text(TEXT * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder.parent / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    config = transformers.LlamaConfig(
        vocab_size=340,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    weights: dict[str, Any] = transformers.LlamaForCausalLM(config).half().state_dict()
    names = sorted(weights)
    for part, names_in_part in (("1", names[::2]), ("2", names[1::2])):
        torch.save({name: weights[name] for name in names_in_part}, folder / f"pytorch_model-0000{part}-of-00002.bin")
    files = {name: f"pytorch_model-0000{1 + index % 2}-of-00002.bin" for index, name in enumerate(names)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    texts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    fields = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **texts}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return weights
