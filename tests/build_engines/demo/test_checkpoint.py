import json
import struct

import pytest

from build_engines.demo.checkpoint import CHECKPOINT, replace_files

MAX_SIZE_BYTES = 8_000_000


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tensors() -> dict:
    """Read the header of the weights: a length in eight bytes, then JSON."""
    with (CHECKPOINT / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__")
    return header


def test_the_checkpoint_is_complete_and_small():
    sizes = {path.name: path.stat().st_size for path in CHECKPOINT.iterdir()}
    assert sorted(sizes) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert sum(sizes.values()) <= MAX_SIZE_BYTES


def test_every_dimension_fits_the_blocks_of_the_quantizations(tensors):
    assert all(size % 32 == 0 for tensor in tensors.values() for size in tensor["shape"])


def test_weights_are_float16_and_the_embedding_is_stored_once(config, tensors):
    assert {tensor["dtype"] for tensor in tensors.values()} == {"F16"}
    assert config["tie_word_embeddings"]
    assert "lm_head.weight" not in tensors
    assert tensors["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]


def test_the_layers_are_those_of_the_configuration(config, tensors):
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    assert layers == {str(layer) for layer in range(config["num_hidden_layers"])}
    key_size = config["num_key_value_heads"] * config["head_dim"]
    assert tensors["model.layers.0.self_attn.k_proj.weight"]["shape"] == [key_size, config["hidden_size"]]


def test_generation_ends_at_either_end_token_and_does_not_choose_how_to_sample():
    generation = json.loads((CHECKPOINT / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == [3056, 3054]
    assert "do_sample" not in generation


def test_replaced_files_leave_nothing_beside_them(tmp_path):
    replace_files(tmp_path, {"a": b"1", "b": b"2"})
    replace_files(tmp_path, {"a": b"3"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"3", "b": b"2"}
