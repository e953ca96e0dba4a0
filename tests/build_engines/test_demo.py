"""The files of the demo model, which are committed and installed."""

from __future__ import annotations

import json
import struct
from importlib import resources
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from build_engines.llama_cpp.gguf_header import check_projector
from model_repository.engine.runtime import PROJECTOR

DEMO = Path(str(resources.files("build_engines").joinpath("demo")))
CHECKPOINT = DEMO / "checkpoint"
ADAPTER = DEMO / "adapters" / "formal"


def tensors(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: a length in eight bytes, then JSON."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header


def read(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def test_the_files_are_complete_and_small() -> None:
    assert {path.name for path in CHECKPOINT.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    for name in ("formal", "pictures"):
        files = {path.name for path in (DEMO / "adapters" / name).iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) < 9_000_000


def test_the_projector_makes_embeddings_of_the_checkpoint() -> None:
    check_projector(DEMO / PROJECTOR)
    dimension = GGUFReader(DEMO / PROJECTOR).fields["clip.vision.projection_dim"].contents()
    assert dimension == read(CHECKPOINT / "config.json")["hidden_size"]


def test_the_weights_are_float16_in_the_shapes_of_the_configuration() -> None:
    config, weights = read(CHECKPOINT / "config.json"), tensors(CHECKPOINT / "model.safetensors")
    assert {tensor["dtype"] for tensor in weights.values()} == {"F16"}
    assert config["tie_word_embeddings"] and "lm_head.weight" not in weights
    assert weights["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    layers = {name.split(".")[2] for name in weights if name.startswith("model.layers.")}
    assert layers == {str(layer) for layer in range(config["num_hidden_layers"])}
    key_size = config["num_key_value_heads"] * config["head_dim"]
    assert weights["model.layers.0.self_attn.k_proj.weight"]["shape"] == [key_size, config["hidden_size"]]


def test_every_dimension_fits_the_blocks_of_the_quantizations() -> None:
    weights = tensors(CHECKPOINT / "model.safetensors")
    assert all(size % 32 == 0 for tensor in weights.values() for size in tensor["shape"])


def test_generation_ends_at_either_end_token() -> None:
    generation = read(CHECKPOINT / "generation_config.json")
    assert generation["eos_token_id"] == [3056, 3054]
    assert "do_sample" not in generation


def test_the_adapter_fits_the_checkpoint() -> None:
    config = read(ADAPTER / "adapter_config.json")
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    assert not Path(config["base_model_name_or_path"]).is_absolute()
    base, adapter = tensors(CHECKPOINT / "model.safetensors"), tensors(ADAPTER / "adapter_model.safetensors")
    targets = [name for name in base if name.split(".")[-2] in config["target_modules"]]
    assert len(adapter) == 2 * len(targets) > 0
    for name in targets:
        num_outputs, num_inputs = base[name]["shape"]
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        assert adapter[f"{stem}.lora_A.weight"]["shape"] == [config["r"], num_inputs]
        assert adapter[f"{stem}.lora_B.weight"]["shape"] == [num_outputs, config["r"]]
