"""GGUF files, written from a checkpoint of the Llama architecture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.checkpoint import Checkpoint, read_json, require
from build_engines.errors import UnsupportedCheckpoint
from build_engines.llama_cpp.weights import read_tensors

ARCHITECTURES = {"LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA}
# What the matrices may be stored in. With f16 here and in the KV cache, what a batch computes differs from what single
# tokens do by up to 1e-1 in a logit of the demo model; with f32, at twice the size, by less than 1e-3.
PRECISIONS: dict[str, tuple[type[np.floating[Any]], gguf.LlamaFileType]] = {
    "f16": (np.float16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (np.float32, gguf.LlamaFileType.ALL_F32),
}


def write_gguf(checkpoint: Checkpoint, path: Path, precision: str = "f16") -> None:
    """Convert a checkpoint: matrices in one of PRECISIONS, vectors in F32.

    Raises:
        UnsupportedCheckpoint: the configuration asks for something that this conversion does not do.
    """
    config = checkpoint.config
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise UnsupportedCheckpoint(f"architecture {architecture}: expected one of {sorted(ARCHITECTURES)}")
    for field, neutral in (("rope_scaling", None), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(field, neutral) != neutral:
            raise UnsupportedCheckpoint(f"{field}={config[field]!r} is not converted yet, only {neutral!r}")
    rope_type = _rope_parameters(config).get("rope_type", "default")
    if rope_type != "default":
        raise UnsupportedCheckpoint(f"rope_parameters.rope_type={rope_type!r} is not converted yet, only 'default'")
    require(config, "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps")
    arch = ARCHITECTURES[architecture]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    matrix_dtype, file_type = PRECISIONS[precision]
    writer.add_file_type(file_type)
    _write_parameters(writer, config)
    _write_vocabulary(writer, checkpoint)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for hf_name, tensor in _checkpoint_tensors(checkpoint.folder):
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UnsupportedCheckpoint(f"tensor {hf_name}: unknown in this architecture")
        converted = _interleaved(hf_name, tensor, config)
        writer.add_tensor(name, converted.astype(np.float32 if tensor.ndim == 1 else matrix_dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_parameters(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(_rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _rope_theta(config: dict[str, Any]) -> float:
    return float(config.get("rope_theta") or _rope_parameters(config).get("rope_theta", 10_000.0))


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return where newer configurations keep the base and the scaling."""
    parameters: dict[str, Any] = config.get("rope_parameters") or {}
    return parameters


def _write_vocabulary(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    description = read_json(checkpoint.folder / "tokenizer.json")
    model = description["model"]
    if model["type"] != "BPE" or "ByteLevel" not in json.dumps(description["decoder"]):
        raise UnsupportedCheckpoint("tokenizer.json: only byte-level BPE is converted yet")
    tokens = {token_id: token for token, token_id in model["vocab"].items()}
    types = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for added in description["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    token_ids = range(checkpoint.config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")  # text is tokenized in the tokenizer stage, never by llama.cpp
    writer.add_token_list([tokens.get(token_id, f"[unused{token_id}]") for token_id in token_ids])
    writer.add_token_types([types.get(token_id, gguf.TokenType.UNUSED) for token_id in token_ids])
    writer.add_token_merges([item if isinstance(item, str) else " ".join(item) for item in model["merges"]])
    writer.add_eos_token_id(checkpoint.eos_token_ids[0])
    writer.add_add_bos_token(False)


def _checkpoint_tensors(folder: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise UnsupportedCheckpoint(f"{folder}: no *.safetensors file")
    for path in paths:
        yield from read_tensors(path)


def _interleaved(name: str, tensor: npt.NDArray[Any], config: dict[str, Any]) -> npt.NDArray[Any]:
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads", num_heads)
    return interleave_rope(name.removesuffix(".weight"), tensor, num_heads, num_kv_heads)


def interleave_rope(module: str, weight: npt.NDArray[Any], num_heads: int, num_kv_heads: int) -> npt.NDArray[Any]:
    """Reorder the rows of each head of a query or key projection; another module's come back as they are.

    Hugging Face rotates the halves of a head, llama.cpp neighbouring pairs.
    """
    heads = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(module.rpartition(".")[2])
    if heads is None:
        return weight
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
