"""A converted checkpoint computes the same as Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from tests.build_engines.llama_cpp.reference import FOLDER, Reference
from tests.build_engines.llama_cpp_logits import Floats, llama_cpp_logits

# How far a logit may be off, in standard deviations of the logits. Measured: 3e-5 (of which 2e-5 are the fixtures' four
# decimals), 1.4e-2 and 5.1e-1: these weights are larger than a trained model's, and carry a rounding far.
BOUNDS = {"f32": 1e-4, "f16": 0.03, "q8_0": 0.6}
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


def converted_logits(reference: Reference, folder: Path, precision: str, num_shards: int = 1) -> Floats:
    """Return llama.cpp's logits after each token of the prompt and of the reference's greedy tokens."""
    checkpoint = reference.write_checkpoint(folder / "checkpoint", num_shards=num_shards)
    write_gguf(Checkpoint.load(checkpoint), folder / "model.gguf", precision)
    return llama_cpp_logits(folder / "model.gguf", [*reference.prompt, *reference.greedy])


def test_there_is_a_fixture_of_each_kind_of_model() -> None:
    assert CASES == [
        "llama",
        "llama_biased",
        "llama_rope_linear",
        "llama_rope_llama3",
        "llama_rope_yarn",
        "llama_sentencepiece",
        "llama_tied",
        "llama_wide_heads",
        "mistral",
        "qwen2",
        "qwen2_rope_yarn",
        "qwen2_tied",
        "qwen3",
        "qwen3_rope_yarn",
        "qwen3_tied",
    ]


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", CASES)
def test_a_converted_checkpoint_computes_the_same(name: str, precision: str, tmp_path: Path) -> None:
    reference = Reference.load(name)
    expected = reference.expected_logits()
    bound = BOUNDS[precision] * expected.std()
    logits = converted_logits(reference, tmp_path, precision)
    assert expected.std() > 2  # a difference would show
    assert np.abs(logits[reference.positions] - expected).max() < bound
    greedy = logits[len(reference.prompt) - 1 : -1].argmax(axis=-1)
    certain = np.array(reference.margins) > bound  # what rounding does not decide
    assert certain.any()
    assert greedy[certain].tolist() == np.array(reference.greedy)[certain].tolist()
    assert precision != "f32" or certain.all()


def test_several_shards_are_one_model(tmp_path: Path) -> None:
    reference = Reference.load("qwen2")
    whole = converted_logits(reference, tmp_path / "whole", "f32")
    assert np.array_equal(converted_logits(reference, tmp_path / "shards", "f32", num_shards=3), whole)


# --- the comparison sees what it is there for -------------------------------------------------------------------------


def is_same(name: str, folder: Path) -> bool:
    """Tell whether a conversion to F32 computes the same even within the widest of the bounds."""
    reference = Reference.load(name)
    expected = reference.expected_logits()
    logits = converted_logits(reference, folder, "f32")[reference.positions]
    return bool(np.abs(logits - expected).max() < max(BOUNDS.values()) * expected.std())


@pytest.mark.parametrize("name", ["llama", "llama_biased", "mistral"])
def test_it_sees_rows_that_are_not_interleaved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.llama_cpp.storage.interleave_heads", lambda tensor, num_heads: tensor)
    assert not is_same(name, tmp_path)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_it_sees_rows_that_are_interleaved_and_should_not_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(arch: object, module: str, num_heads: int, num_kv_heads: int) -> int | None:
        return num_heads if module.endswith("q_proj") else None

    monkeypatch.setattr("build_engines.llama_cpp.layout.num_interleaved_heads", heads)
    assert not is_same(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["llama_rope_llama3", "llama_rope_linear", "llama_rope_yarn", "qwen2_rope_yarn", "qwen3_rope_yarn"]
)
def test_it_sees_that_the_scaling_of_positions_is_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = "build_engines.llama_cpp.rope.Rope"
    monkeypatch.setattr(f"{rope}.write", lambda self, writer: writer.add_rope_freq_base(self.theta))
    monkeypatch.setattr(f"{rope}.frequency_factors", lambda self, head_dim: None)
    assert not is_same(name, tmp_path)
