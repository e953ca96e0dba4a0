"""Checkpoints with PyTorch's own files: the copy that a build makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from build_engines.errors import BuildError
from build_engines.tensorrt_llm import import_checkpoint
from build_engines.tensorrt_llm.imported import imported
from build_engines.tensorrt_llm.tool import ToolRun, run_tool

TEXT = "Triton serves language models. It streams each token at once. 0123456789\n"


@dataclass
class FakeTool:
    """Writes what the tool makes, or fails."""

    fails: bool = False
    ran: list[ToolRun] = field(default_factory=list)

    def __call__(self, run: ToolRun) -> None:
        self.ran.append(run)
        (run.output / "model.safetensors").write_text("weights")
        if self.fails:
            raise BuildError("import failed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the older kind."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "pytorch_model-00001-of-00001.bin", "tokenizer.model"):
        (folder / name).write_text(name)
    return folder


def test_a_checkpoint_is_imported_once(folder: Path, tmp_path: Path) -> None:
    tool = FakeTool()
    copy = imported(folder, tmp_path / "work", 1, tool)
    assert [path.name for path in copy.iterdir()] == ["model.safetensors"]
    assert imported(folder, tmp_path / "work", 1, tool) == copy
    [run] = tool.ran
    assert run.command[1:3] == (import_checkpoint.__file__, str(folder))
    (folder / "pytorch_model-00001-of-00001.bin").write_text("other weights")
    assert imported(folder, tmp_path / "work", 1, tool) != copy


def test_a_failed_import_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="import failed"):
        imported(folder, tmp_path / "work", 1, FakeTool(fails=True))
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_a_checkpoint_that_has_everything_is_not_copied(weights: str, folder: Path, tmp_path: Path) -> None:
    for name in (weights, "tokenizer.json"):
        (folder / name).touch()
    assert imported(folder, tmp_path / "work", 1, FakeTool()) == folder


def test_a_checkpoint_without_anything_to_import_is_left_to_its_check(tmp_path: Path) -> None:
    assert imported(tmp_path, tmp_path / "work", 1, FakeTool()) == tmp_path


@pytest.mark.workshop
def test_the_copy_has_the_same_weights_and_the_same_tokens(tmp_path: Path) -> None:
    """With the real libraries: pip install torch transformers sentencepiece."""
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
