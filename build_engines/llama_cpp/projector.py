"""Writes the part of a SmolVLM or Idefics3 checkpoint that reads images: a SigLIP vision tower and a projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from build_engines.checkpoint import Checkpoint, positive_number, whole_number
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.json_files import read_json
from build_engines.llama_cpp.weights import StoredTensor, find_tensors

ARCHITECTURES = ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")

_ACTIVATION = "gelu_pytorch_tanh"  # the only one that llama.cpp computes here
# Checkpoints leave out the fields that have transformers' own defaults.
_DEFAULTS = {
    "hidden_act": _ACTIVATION,
    "hidden_size": 1152,
    "image_size": 224,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 16,
    "num_hidden_layers": 12,
    "patch_size": 32,
}
_TEXT = "model.text_model."
_IMAGES = ("model.vision_model.", "model.connector.")
_BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def text_tensors(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of the language model, by their names in a checkpoint without images."""
    return {
        name.replace(_TEXT, "model.", 1): tensor for name, tensor in tensors.items() if not name.startswith(_IMAGES)
    }


def write_projector(checkpoint: Checkpoint, path: Path, precision: str) -> None:
    """Write llama.cpp's file, its matrices in F32 with precision f32, else in F16.

    Raises:
        UnsupportedCheckpoint: a field or a tensor is missing, unknown or of a kind that llama.cpp does not compute.
        BuildError: a file cannot be read or written.
    """
    config, tensors = checkpoint.whole_config, find_tensors(checkpoint.folder)
    if not set(config.get("architectures") or ()) & set(ARCHITECTURES):
        rule = f"of models with images {' and '.join(ARCHITECTURES)} are converted; any other one is served from GGUF"
        raise UnsupportedCheckpoint(f"architectures {config.get('architectures')}: {rule} files (--gguf, --mmproj)")
    vision = _DEFAULTS | (config.get("vision_config") or {})
    if vision["hidden_act"] != _ACTIVATION:
        raise UnsupportedCheckpoint(
            f"config.json: vision_config.hidden_act={vision['hidden_act']!r}: not {_ACTIVATION!r}"
        )
    pixels = read_json(checkpoint.folder / "preprocessor_config.json")
    size = pixels.get("size")
    num_blocks = _number(vision, "num_hidden_layers")
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if precision == "f32" else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("idefics3")
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(_number(vision, "image_size"))
    writer.add_vision_preproc_image_size(_number(size if isinstance(size, dict) else {}, "longest_edge"))
    writer.add_vision_patch_size(_number(vision, "patch_size"))
    writer.add_vision_embedding_length(_number(vision, "hidden_size"))
    writer.add_vision_feed_forward_length(_number(vision, "intermediate_size"))
    writer.add_vision_projection_dim(_number(checkpoint.config, "hidden_size"))
    writer.add_vision_projector_scale_factor(_number(config, "scale_factor"))
    writer.add_vision_block_count(num_blocks)
    writer.add_vision_head_count(_number(vision, "num_attention_heads"))
    writer.add_vision_attention_layernorm_eps(positive_number("config.json: layer_norm_eps", vision["layer_norm_eps"]))
    writer.add_vision_image_mean(_of_colours(pixels, "image_mean"))
    writer.add_vision_image_std(_of_colours(pixels, "image_std"))
    for name, own_name in _names(num_blocks):
        if name not in tensors:
            raise UnsupportedCheckpoint(f"tensor {name}: missing")
        tensor = tensors[name].read()
        is_half = precision != "f32" and tensor.ndim == 2 and "embd" not in own_name
        writer.add_tensor(own_name, np.ascontiguousarray(tensor, np.float16 if is_half else np.float32))
    with closing(writer):
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        except OSError as exc:
            raise BuildError(f"{path}: cannot be written ({exc})") from exc


def _names(num_blocks: int) -> Iterator[tuple[str, str]]:
    """Yield the names of the tensors in both formats."""
    vision = "model.vision_model"
    yield f"{vision}.embeddings.position_embedding.weight", "v.position_embd.weight"
    yield "model.connector.modality_projection.proj.weight", "mm.model.fc.weight"
    for kind in ("weight", "bias"):
        yield f"{vision}.embeddings.patch_embedding.{kind}", f"v.patch_embd.{kind}"
        yield f"{vision}.post_layernorm.{kind}", f"v.post_ln.{kind}"
        for block in range(num_blocks):
            for name, own_name in _BLOCK.items():
                yield f"{vision}.encoder.layers.{block}.{name}.{kind}", f"v.blk.{block}.{own_name}.{kind}"


def _number(config: Mapping[str, Any], name: str) -> int:
    return whole_number(f"configuration of images: {name}", config.get(name))


def _of_colours(config: Mapping[str, Any], name: str) -> list[float]:
    match config.get(name):
        case [int() | float(), int() | float(), int() | float()] as values if all(0 <= value <= 1 for value in values):
            return list(map(float, values))
    rule = "expected three numbers from 0 to 1"
    raise UnsupportedCheckpoint(f"preprocessor_config.json: {name}={config.get(name)!r}: {rule}")
