"""An adapter on its base computes the same as a base with the adapter merged into its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError, UnsupportedAdapter
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import GgufBase, read_gguf_base
from build_engines.llama_cpp.lora import write_lora
from build_engines.peft import LoraAdapter
from tests.build_engines.llama_cpp_logits import PROMPT, Floats, assert_same, llama_cpp_logits
from tests.build_engines.tiny_adapter import RANK, Pairs, merged, random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import CONFIG, random_weights, write_checkpoint

WEIGHTS = random_weights()
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PAIRS = random_pairs(WEIGHTS, ATTENTION)
SCALE = 8 / RANK  # alpha / r
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def convert_base(folder: Path, weights: dict[str, Any] = WEIGHTS, precision: str = "f16", **config: Any) -> Path:
    """Write a base model as GGUF and return its path."""
    checkpoint = write_checkpoint(folder, weights=weights, **config)
    write_gguf(Checkpoint.load(checkpoint), folder / "model.gguf", precision)
    return folder / "model.gguf"


def convert_adapter(folder: Path, base: Path) -> Path:
    """Convert an adapter folder and return the path of the result."""
    write_lora(LoraAdapter.load(folder), read_gguf_base(base), folder / "adapter.gguf")
    return folder / "adapter.gguf"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The tiny checkpoint as GGUF."""
    return convert_base(tmp_path / "base")


@pytest.fixture
def adapted_logits(tmp_path: Path, base: Path) -> Callable[..., Floats]:
    """Returns the base's logits with an adapter."""

    def logits(tensors: dict[str, Any], **config: Any) -> Floats:
        adapter = write_adapter(tmp_path / "adapter", tensors, **config)
        return llama_cpp_logits(base, PROMPT, convert_adapter(adapter, base))

    return logits


@pytest.fixture
def merged_logits(tmp_path: Path) -> Callable[[float], Floats]:
    """Returns the logits of a base whose weights have the adapter added to them."""

    def logits(scale: float) -> Floats:
        return llama_cpp_logits(convert_base(tmp_path / "merged", merged(WEIGHTS, PAIRS, scale), "f32"), PROMPT)

    return logits


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("ends", [*((end,) for end in (*ATTENTION, *MLP, "lm_head")), (*ATTENTION, *MLP)], ids=str)
def test_an_adapter_equals_merged_weights(ends: tuple[str, ...], architecture: str, tmp_path: Path) -> None:
    config = {"architectures": [architecture], "hidden_size": 64}
    weights = random_weights(CONFIG | config)
    pairs = random_pairs(weights, ends)
    base = convert_base(tmp_path / "a", weights, "f32", **config)  # f16 would round the merged weights
    whole = convert_base(tmp_path / "b", merged(weights, pairs, SCALE), "f32", **config)
    adapter = convert_adapter(write_adapter(tmp_path / "c", tensors_of(pairs)), base)
    expected = llama_cpp_logits(whole, PROMPT)
    assert np.abs(llama_cpp_logits(base, PROMPT) - expected).max() > expected.std()
    assert np.abs(llama_cpp_logits(base, PROMPT, adapter) - expected).max() < 1e-3 * expected.std()


def test_an_adapter_fits_a_base_in_q8_0(tmp_path: Path) -> None:
    """Up to what 8 bits round: a wrong adapter is off by more than a standard deviation."""
    config = {"hidden_size": 64, "intermediate_size": 96}
    weights = random_weights(CONFIG | config)
    pairs = random_pairs(weights, (*ATTENTION, *MLP))
    base = convert_base(tmp_path / "a", weights, "q8_0", **config)
    whole = convert_base(tmp_path / "b", merged(weights, pairs, SCALE), "f32", **config)
    adapter = convert_adapter(write_adapter(tmp_path / "c", tensors_of(pairs)), base)
    expected = llama_cpp_logits(whole, PROMPT)
    assert root_mean_square(llama_cpp_logits(base, PROMPT) - expected) > expected.std()
    assert root_mean_square(llama_cpp_logits(base, PROMPT, adapter) - expected) < 0.1 * expected.std()


def root_mean_square(differences: Floats) -> float:
    return float(np.sqrt((differences**2).mean()))


@pytest.mark.parametrize(
    ("dtype", "config", "scale"),
    [
        (np.float16, {}, SCALE),
        (np.float64, {"lora_alpha": 0.5}, 0.5 / RANK),
        (np.float32, {"use_rslora": True, "lora_alpha": 3}, 3 / RANK**0.5),
    ],
    ids=["f16", "alpha", "rank-stabilized"],
)
def test_an_adapter_may_have_another_precision_and_scale(
    dtype: Any,
    config: dict[str, Any],
    scale: float,
    adapted_logits: Callable[..., Floats],
    merged_logits: Callable[[float], Floats],
) -> None:
    tensors = {name: tensor.astype(dtype) for name, tensor in tensors_of(PAIRS).items()}
    assert_same(adapted_logits(tensors, **config), merged_logits(scale))


def test_the_comparison_sees_a_wrong_rotation(
    adapted_logits: Callable[..., Floats],
    merged_logits: Callable[[float], Floats],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the reordering of each head's rows, as the base's are reordered."""
    expected = merged_logits(SCALE)
    monkeypatch.setattr("build_engines.llama_cpp.lora.interleave_heads", lambda weight, num_heads: weight)
    with pytest.raises(AssertionError):
        assert_same(adapted_logits(tensors_of(PAIRS)), expected)


def test_the_file_has_the_metadata_for_llama_cpp(tmp_path: Path, base: Path) -> None:
    path = convert_adapter(write_adapter(tmp_path / "adapter", tensors_of(PAIRS)), base)
    reader = gguf.GGUFReader(path)
    names = ("general.type", "general.architecture", "adapter.type", "adapter.lora.alpha")
    assert [reader.fields[name].contents() for name in names] == ["adapter", "llama", "lora", 8.0]
    tensors = {f"blk.{layer}.attn_{name}.weight.lora_{side}" for layer in (0, 1) for name in "qkv" for side in "ab"}
    tensors |= {f"blk.{layer}.attn_output.weight.lora_{side}" for layer in (0, 1) for side in "ab"}
    assert {tensor.name for tensor in reader.tensors} == tensors


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type="IA3": expected LORA'),
        ({"use_dora": True}, "use_dora=true: is not converted"),
        ({"use_qalora": True}, "use_qalora=true: is not converted"),
        ({"bias": "all"}, 'bias="all": is not converted'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=true: is not converted"),
        ({"rank_pattern": {"q_proj": 2}}, r'rank_pattern=\{"q_proj": 2\}: is not converted'),
        ({"alora_invocation_tokens": [5]}, r"alora_invocation_tokens=\[5\]: is not converted"),
        ({"init_lora_weights": "pissa_niter_16"}, 'init_lora_weights="pissa_niter_16": changes the base model too'),
        ({"r": 0}, "r=0: expected a whole number from 1"),
        ({"r": 10**400}, "r=10+: expected a whole number from 1"),
        ({"lora_alpha": 1e300}, r"lora_alpha=1e\+300: expected a number above 0"),
        ({"r": 4.0}, r"r=4\.0: expected a whole number from 1"),
        ({"lora_alpha": 0}, "lora_alpha=0: expected a number above 0"),
        ({"lora_alpha": "16"}, 'lora_alpha="16": expected a number above 0'),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_converted_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", tensors_of(PAIRS), **config)
    with pytest.raises(UnsupportedAdapter, match=rf"adapter/adapter_config\.json: {message}"):
        LoraAdapter.load(folder)


@pytest.mark.parametrize("initialization", [True, "gaussian"])
def test_an_initialization_that_keeps_the_base_is_accepted(initialization: bool | str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", tensors_of(PAIRS), init_lora_weights=initialization)
    assert LoraAdapter.load(folder).alpha == 8


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(name: str, tmp_path: Path, base: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", tensors_of(PAIRS))
    (folder / name).unlink()
    with pytest.raises(BuildError, match=f"adapter/{name}: no such file"):
        convert_adapter(folder, base)


def pairs_of(module: str, a: tuple[int, int] = (RANK, 48), b: tuple[int, int] = (64, RANK)) -> Pairs:
    return {module: (np.ones(a, dtype=np.float32), np.ones(b, dtype=np.float32))}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"adapter_model\.safetensors: no tensors"),
        (
            {f"{Q_PROJ}.lora_A.weight": np.ones((RANK, 48))},
            r"module model\.layers\.0\.self_attn\.q_proj: one of lora_A and lora_B is missing",
        ),
        (
            {f"{Q_PROJ}.lora_magnitude_vector": np.ones(64)},
            r"q_proj\.lora_magnitude_vector: not a matrix of a linear layer's adapter",
        ),
        (
            tensors_of(pairs_of("model.layers.0.self_attn.qkv_proj")),
            r"module model\.layers\.0\.self_attn\.qkv_proj: the base model has no such linear layer",
        ),
        (
            tensors_of(pairs_of("model.layers.2.self_attn.q_proj")),
            r"module model\.layers\.2\.self_attn\.q_proj: the base model has no such linear layer",
        ),
        (
            tensors_of(pairs_of("model.layers.0.self_attn.q_proj", (RANK, 40))),
            r"q_proj: lora_A and lora_B are of shape \[4, 40\] and \[64, 4\]; r=4 and the base model need "
            r"\[4, 48\] and \[64, 4\]",
        ),
        (
            tensors_of(pairs_of("model.layers.0.self_attn.k_proj")),
            r"k_proj: lora_A and lora_B are of shape \[4, 48\] and \[64, 4\]; r=4 .* need \[4, 48\] and \[32, 4\]",
        ),
        (
            tensors_of(pairs_of("model.layers.0.self_attn.q_proj", (2, 48), (64, 2))),
            r"q_proj: lora_A and lora_B are of shape \[2, 48\] and \[64, 2\]; r=4 .* need \[4, 48\] and \[64, 4\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors: dict[str, Any], message: str, tmp_path: Path, base: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match=message):
        convert_adapter(write_adapter(tmp_path / "adapter", tensors), base)


def test_an_adapter_of_the_output_needs_a_base_whose_embeddings_are_not_tied(tmp_path: Path) -> None:
    tied = {name: WEIGHTS[name] for name in WEIGHTS if name != "lm_head.weight"}
    base = convert_base(tmp_path, tied, tie_word_embeddings=True)
    adapter = write_adapter(tmp_path / "adapter", tensors_of(random_pairs(WEIGHTS, ("lm_head",))))
    with pytest.raises(UnsupportedAdapter, match="module lm_head: the base model has no such linear layer"):
        convert_adapter(adapter, base)


def test_a_base_of_another_architecture_is_refused(tmp_path: Path) -> None:
    base = GgufBase(architecture="gemma", num_layers=2, num_heads=4, num_kv_heads=2, shapes={})
    adapter = LoraAdapter.load(write_adapter(tmp_path / "adapter", tensors_of(PAIRS)))
    with pytest.raises(
        UnsupportedAdapter, match=r"the base is of architecture gemma: expected one of \['llama', 'qwen2', 'qwen3'\]"
    ):
        write_lora(adapter, base, tmp_path / "adapter.gguf")
