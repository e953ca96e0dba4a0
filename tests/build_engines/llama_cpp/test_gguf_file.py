"""A converted checkpoint computes what the checkpoint computes: llama.cpp against Llama written down in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from tests.build_engines.reference_llama import PROMPT, Llama, assert_same, llama_cpp_logits
from tests.build_engines.tiny_checkpoint import CONFIG, random_weights, write_checkpoint


def convert(checkpoint: Path, path: Path) -> Path:
    write_gguf(Checkpoint.load(checkpoint), path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4},  # every query head has its own
        {"num_key_value_heads": 1},
        {"rope_theta": 500_000.0},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        {"head_dim": 8},  # not hidden_size / num_attention_heads
    ],
    ids=str,
)
def test_a_converted_checkpoint_computes_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    config = CONFIG | changes
    weights = random_weights(config)
    path = convert(write_checkpoint(tmp_path / "checkpoint", weights=weights, **changes), tmp_path / "model.gguf")
    config["rope_theta"] = config["rope_theta"] or config["rope_parameters"]["rope_theta"]
    assert_same(llama_cpp_logits(path, PROMPT), Llama(weights, config).logits(PROMPT))


def test_tied_embeddings_are_the_output_too(tmp_path: Path) -> None:
    weights = random_weights()
    del weights["lm_head.weight"]
    weights["model.embed_tokens.weight"] *= np.float16(3)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", weights=weights, tie_word_embeddings=True)
    path = convert(checkpoint, tmp_path / "model.gguf")
    assert_same(llama_cpp_logits(path, PROMPT), Llama(weights).logits(PROMPT))


def test_the_comparison_sees_a_wrong_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reordering of each head's rows, which the conversion is there for."""
    monkeypatch.setattr("build_engines.llama_cpp.gguf_file.interleave_rope", lambda module, weight, *heads: weight)
    path = convert(write_checkpoint(tmp_path / "checkpoint"), tmp_path / "model.gguf")
    with pytest.raises(AssertionError):
        assert_same(llama_cpp_logits(path, PROMPT), Llama(random_weights()).logits(PROMPT))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            r"architecture GemmaForCausalLM: expected one of \['Llama",
        ),
        ({"architectures": []}, "architecture none"),
        ({"architectures": None}, "architecture none"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling=.*llama3.* is not converted yet"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type='yarn' is not converted yet"),
        ({"attention_bias": True}, "attention_bias=True is not converted yet, only False"),
        ({"mlp_bias": True}, "mlp_bias=True is not converted yet, only False"),
        ({"rms_norm_eps": None}, r"config\.json: rms_norm_eps is missing"),
    ],
)
def test_what_is_not_converted_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **changes)
    with pytest.raises(BuildError, match=message):
        convert(checkpoint, tmp_path / "model.gguf")


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    weights = random_weights() | {"model.layers.0.self_attn.extra.weight": np.zeros(4, dtype=np.float16)}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", weights=weights)
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor model\.layers\.0\.self_attn\.extra\.weight: unknown"):
        convert(checkpoint, tmp_path / "model.gguf")


def test_a_checkpoint_without_weights_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"no \*\.safetensors file"):
        convert(checkpoint, tmp_path / "model.gguf")
