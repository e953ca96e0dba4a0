"""Writing GGUF files, and refusals before the writing."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp import weights as weights_module
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.model_config import ModelConfig
from tests.build_engines.tiny_checkpoint import CONFIG, Weights, random_weights, write_checkpoint

WEIGHTS = random_weights()
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"]}
QWEN2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"]}
QWEN3: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def convert(checkpoint: Path, precision: str = "f16") -> gguf.GGUFReader:
    path = checkpoint / "model.gguf"
    write_gguf(Checkpoint.load(checkpoint), path, precision)
    return gguf.GGUFReader(path)


def tensors_of(reader: gguf.GGUFReader) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in reader.tensors}


# --- what is written --------------------------------------------------------------------------------------------------


def test_matrices_with_rows_of_whole_blocks_are_quantized(tmp_path: Path) -> None:
    """Rows of 48 and 80 numbers are not, those of the output projection, of 64, are."""
    checkpoint = write_checkpoint(tmp_path, weights=WEIGHTS)
    types = {name: tensor.tensor_type.name for name, tensor in tensors_of(convert(checkpoint, "q8_0")).items()}
    assert {name for name, word in types.items() if word == "Q8_0"} == {f"blk.{n}.attn_output.weight" for n in (0, 1)}
    assert {name.split(".")[-2] for name, word in types.items() if word == "F32"} == {
        "attn_norm",
        "ffn_norm",
        "output_norm",
    }
    assert {types[name] for name in ("token_embd.weight", "output.weight", "blk.0.ffn_down.weight")} == {"F16"}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_quantized_numbers_are_within_half_a_step_of_the_checkpoints(dtype: Any, tmp_path: Path) -> None:
    config = CONFIG | {"hidden_size": 64, "intermediate_size": 96}
    weights = {name: tensor.astype(dtype) for name, tensor in random_weights(config).items()}
    tensors = tensors_of(convert(write_checkpoint(tmp_path, weights=weights, **config), "q8_0"))
    for name, source in (("token_embd", "model.embed_tokens"), ("output", "lm_head")):
        tensor, expected = tensors[f"{name}.weight"], weights[f"{source}.weight"].astype(np.float64)
        assert tensor.tensor_type is gguf.GGMLQuantizationType.Q8_0
        steps = np.abs(expected.reshape(-1, 32)).max(axis=1) / 127
        error = np.abs(dequantize(tensor.data, tensor.tensor_type) - expected).reshape(-1, 32).max(axis=1)
        assert (error <= 0.57 * steps).all()  # half a step, and the step itself is rounded to F16: 127 * 2**-11


def test_a_conversion_in_pieces_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint(tmp_path, weights=WEIGHTS)
    convert(checkpoint, "q8_0")
    whole = (checkpoint / "model.gguf").read_bytes()
    monkeypatch.setattr(weights_module, "_MAX_PIECE_BYTES", 1000)
    convert(checkpoint, "q8_0")
    assert (checkpoint / "model.gguf").read_bytes() == whole


def test_progress_counts_the_bytes_of_tensors(checkpoint: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = tmp_path / "model.gguf"
    write_gguf(Checkpoint.load(checkpoint), path, "f16", lambda done, total: seen.append((done, total)))
    sizes = [tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors]
    assert seen == [(sum(sizes[: index + 1]), sum(sizes)) for index in range(len(sizes))]


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_output_that_is_the_embedding_is_left_out(num_shards: int, tmp_path: Path) -> None:
    config: dict[str, Any] = {"tie_word_embeddings": True}
    weights = random_weights(CONFIG | config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    checkpoint = write_checkpoint(tmp_path, weights=weights, num_shards=num_shards, **config)
    assert "output.weight" not in tensors_of(convert(checkpoint))


def test_the_buffers_of_early_checkpoints_are_left_out(tmp_path: Path) -> None:
    buffers = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": np.ones(8, dtype=np.float32) for n in (0, 1)}
    checkpoint = write_checkpoint(tmp_path, weights=WEIGHTS | buffers)
    assert len(tensors_of(convert(checkpoint))) == len(WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "num_tokens"),
    [
        (MISTRAL | {"sliding_window": 2000}, 2000),
        (MISTRAL | {"sliding_window": 9000}, 8192),
        (MISTRAL | {"sliding_window": None}, 8192),
        (MISTRAL, 4096),  # transformers' default
        ({"sliding_window": 2000}, 8192),  # Llama has none
        (QWEN3 | {"sliding_window": 2000, "use_sliding_window": False}, 8192),
    ],
)
def test_a_context_window_is_no_larger_than_the_sliding_window(changes: dict[str, Any], num_tokens: int) -> None:
    assert ModelConfig.of(CONFIG | {"max_position_embeddings": 8192} | changes).context_window == num_tokens


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "architecture GemmaForCausalLM: expected one of LlamaForCausalLM, MistralForCausalLM, Qwen2",
        ),
        ({"architectures": []}, "architecture none"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': expected 'silu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config=.*fp8.*: expected None"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5: expected 1"),
        (QWEN2 | {"use_sliding_window": True}, "use_sliding_window=True: expected False"),
        (QWEN2 | {"layer_types": ["sliding_attention"] * 2}, "layer_types=.*: expected full_attention alone"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small': expected a number above 0"),
        ({"rms_norm_eps": None}, r"config\.json: rms_norm_eps is missing"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers='2': expected a whole number from 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: expected a divisor of num_attention_heads=4"),
        ({"head_dim": 15}, "head_dim=15: expected an even number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: expected a whole number from 1 to 512"),
        ({"hidden_size": 10**30}, "hidden_size=10+: expected a whole number from 1 to 2147483647"),
        ({"rope_theta": 10**400}, "rope_theta=10+: expected a number above 0"),
        ({"bos_token_id": "x"}, "bos_token_id='x': expected a whole number from -1"),
        ({"rope_scaling": YARN, "rope_parameters": YARN}, "rope_parameters and rope_scaling: expected one of the two"),
        ({"rope_parameters": {"type": "linear"}}, r"rope_parameters\.factor=None: expected a number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear': expected an object"),
        ({"rope_theta": -1.0}, r"rope_theta=-1\.0: expected a number above 0"),
        (MISTRAL | {"sliding_window": 1}, "sliding_window=1: expected a whole number from 2"),
        (QWEN2 | {"rope_scaling": LLAMA3}, r"rope_type='llama3': llama\.cpp does not have it for Qwen2ForCausalLM"),
        (QWEN3 | {"rope_scaling": LLAMA3}, r"rope_type='llama3': llama\.cpp does not have it for Qwen3ForCausalLM"),
        # More rows than the embedding has: the list of tokens was made first.
        ({"vocab_size": 2**24}, r"tensor model\.embed_tokens\.weight: is of shape \[288, 48\]"),
    ],
)
def test_an_unsupported_configuration_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, weights=WEIGHTS, **changes)
    with pytest.raises(BuildError, match=message):
        convert(checkpoint)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type='dynamic': expected one of default, linear, yarn, llama3"),
        ({"rope_type": "linear"}, "factor=None: expected a number above 0"),
        ({"type": "linear", "factor": -1}, "factor=-1: expected a number above 0"),
        (LLAMA3 | {"low_freq_factor": None}, "low_freq_factor=None: expected a number above 0"),
        (LLAMA3 | {"high_freq_factor": 1.0}, r"high_freq_factor=1\.0: expected more than low_freq_factor=1\.0"),
        (LLAMA3 | {"beta_fast": 16}, "beta_fast=16: with rope_type='llama3', expected 32"),
        (YARN | {"beta_slow": 2}, "beta_slow=2: with rope_type='yarn', expected 1"),
        (YARN | {"mscale": 0.7}, r"mscale=0\.7: with rope_type='yarn', expected None"),
        (YARN | {"truncate": False}, "truncate=False: with rope_type='yarn', expected True"),
        (YARN | {"attention_factor": 0}, "attention_factor=0: expected a number above 0"),
        (YARN | {"original_max_position_embeddings": 1e10}, "original_max_position_embeddings=10000000000.0: expected"),
        (
            {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.2},
            r"attention_factor=1\.2: with rope_type='lin",
        ),
    ],
    ids=str,
)
def test_a_scaling_of_positions_that_is_not_converted_is_refused(
    scaling: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path, weights=WEIGHTS, rope_scaling=scaling)
    with pytest.raises(UnsupportedCheckpoint, match=rf"config\.json: rope_scaling\.{message}"):
        convert(checkpoint)


def without(name: str) -> Weights:
    return {other: tensor for other, tensor in WEIGHTS.items() if other != name}


@pytest.mark.parametrize(
    ("weights", "changes", "message"),
    [
        (without(Q_PROJ), {}, rf"tensor {Q_PROJ}: missing"),
        (without("lm_head.weight"), {}, r"tensor lm_head\.weight: missing"),
        (WEIGHTS, QWEN3, r"tensor model\.layers\.0\.self_attn\.q_norm\.weight: missing"),
        (
            random_weights(CONFIG | QWEN2) | random_weights(CONFIG | QWEN3),
            QWEN3 | {"attention_bias": True},
            r"tensor model\.layers\.0\.self_attn\.k_proj\.bias: unknown in this architecture",
        ),
        (WEIGHTS, QWEN2, r"tensor model\.layers\.0\.self_attn\.q_proj\.bias: missing"),
        (WEIGHTS, {"attention_bias": True}, r"tensor model\.layers\.0\.self_attn\.q_proj\.bias: missing"),
        (
            WEIGHTS | {Q_PROJ: WEIGHTS[Q_PROJ][:-1]},
            {},
            rf"tensor {Q_PROJ}: is of shape \[63, 48\], config\.json makes it \[64, 48\]",
        ),
        (
            WEIGHTS | {"model.layers.0.self_attn.extra.weight": np.zeros(4, dtype=np.float16)},
            {},
            r"tensor model\.layers\.0\.self_attn\.extra\.weight: unknown in this architecture",
        ),
        (
            WEIGHTS,
            {"tie_word_embeddings": True},
            r"tensor lm_head\.weight: config\.json ties it to the embedding .*, from which it differs",
        ),
    ],
)
def test_tensors_that_are_not_the_models_are_refused(
    weights: Weights, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path, weights=weights, **changes)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        convert(checkpoint)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(("precision", "value"), [("f16", 1e6), ("q8_0", np.inf), ("q8_0", np.nan)])
def test_numbers_that_do_not_fit_are_refused(precision: str, value: float, tmp_path: Path) -> None:
    config = CONFIG | {"hidden_size": 64}
    weights: dict[str, Any] = dict(random_weights(config))
    weights["lm_head.weight"] = weights["lm_head.weight"].astype(np.float32)
    weights["lm_head.weight"][5, 7] = value
    checkpoint = write_checkpoint(tmp_path, weights=weights, **config)
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor lm_head\.weight: has NaN, or a number that is too large"):
        convert(checkpoint, precision)


def test_a_full_disk_is_reported_before_the_writing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100_000, 90_000, 10_000))
    with pytest.raises(BuildError, match=r"model\.gguf: needs 139,200 bytes, and 10,000 are free there"):
        convert(checkpoint)
    assert not (checkpoint / "model.gguf").exists()


def test_a_disk_that_fills_up_meanwhile_is_one_line(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: gguf.GGUFWriter, tensor: Any) -> None:
        raise OSError("4096 requested and 512 written")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", write)
    with pytest.raises(BuildError, match=r"model\.gguf: cannot be written \(4096 requested and 512 written\)"):
        convert(checkpoint)
