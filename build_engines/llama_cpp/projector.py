"""Writes the part of a LLaVA 1.5 checkpoint that reads images: a CLIP vision tower, and two layers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from build_engines.checkpoint import Checkpoint, read_json, require
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp.weights import StoredTensor, find_tensors

LLAVA = "LlavaForConditionalGeneration"

# Fields with the only values that llama.cpp computes; the first one is meant where the field is missing.
_ONLY: dict[str, tuple[Any, ...]] = {
    "projector_hidden_act": ("gelu",),
    "vision_feature_layer": (-2,),
    "vision_feature_select_strategy": ("default",),
    "multimodal_projector_bias": (True,),
}
_ACTIVATIONS = {"quick_gelu": False, "gelu": True}  # to clip.use_gelu
# Older and newer versions of transformers name them differently.
_TEXT = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
)
_IMAGES = ("model.vision_tower.", "vision_tower.", "model.multi_modal_projector.", "multi_modal_projector.")
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
    return {_text_name(name): tensor for name, tensor in tensors.items() if not name.startswith(_IMAGES)}


def write_projector(checkpoint: Checkpoint, path: Path, precision: str) -> None:
    """Write llama.cpp's file, its matrices in F32 with precision f32, else in F16.

    Raises:
        UnsupportedCheckpoint: a field or a tensor is missing, unknown or of a kind that llama.cpp does not compute.
        BuildError: a file cannot be read or written.
    """
    config, tensors = checkpoint.image_config or {}, find_tensors(checkpoint.folder)
    if config.get("architectures") != [LLAVA]:
        raise UnsupportedCheckpoint(
            f"architecture {config.get('architectures')}: of models with images {LLAVA} is converted"
        )
    for name, accepted in _ONLY.items():
        if config.get(name, accepted[0]) not in accepted:
            raise UnsupportedCheckpoint(f"config.json: {name}={config[name]!r}: expected {accepted[0]!r}")
    require(config, "vision_config")
    vision, pixels = config["vision_config"], read_json(checkpoint.folder / "preprocessor_config.json")
    activation = vision.get("hidden_act", "quick_gelu")
    if vision.get("model_type") != "clip_vision_model" or activation not in _ACTIVATIONS:
        raise UnsupportedCheckpoint("config.json: vision_config: expected a clip_vision_model with quick_gelu or gelu")
    num_blocks = _number(vision, "num_hidden_layers")
    names = dict(_names(num_blocks))
    found = {_image_name(name): tensor for name, tensor in tensors.items() if name.startswith(_IMAGES)}
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if precision == "f32" else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_vision_use_gelu(_ACTIVATIONS[activation])
    writer.add_vision_image_size(_number(vision, "image_size"))
    writer.add_vision_patch_size(_number(vision, "patch_size"))
    writer.add_vision_embedding_length(_number(vision, "hidden_size"))
    writer.add_vision_feed_forward_length(_number(vision, "intermediate_size"))
    writer.add_vision_projection_dim(_number(vision, "projection_dim"))
    writer.add_vision_block_count(num_blocks)
    writer.add_vision_head_count(_number(vision, "num_attention_heads"))
    writer.add_vision_attention_layernorm_eps(float(vision.get("layer_norm_eps", 1e-5)))
    writer.add_vision_image_mean(pixels["image_mean"])
    writer.add_vision_image_std(pixels["image_std"])
    for name, own_name in names.items():
        if name not in found:
            raise UnsupportedCheckpoint(f"tensor {name}: missing")
        tensor = found[name].read()
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
    embeddings = "vision_model.embeddings"
    yield f"{embeddings}.class_embedding", "v.class_embd"
    yield f"{embeddings}.patch_embedding.weight", "v.patch_embd.weight"
    yield f"{embeddings}.position_embedding.weight", "v.position_embd.weight"
    for kind in ("weight", "bias"):
        yield f"vision_model.pre_layrnorm.{kind}", f"v.pre_ln.{kind}"
        for block in range(num_blocks):
            for name, own_name in _BLOCK.items():
                yield f"vision_model.encoder.layers.{block}.{name}.{kind}", f"v.blk.{block}.{own_name}.{kind}"
        yield f"linear_1.{kind}", f"mm.0.{kind}"
        yield f"linear_2.{kind}", f"mm.2.{kind}"


def _text_name(name: str) -> str:
    for prefix, own_prefix in _TEXT:
        if name.startswith(prefix):
            return own_prefix + name.removeprefix(prefix)
    return name


def _image_name(name: str) -> str:
    prefix = next(prefix for prefix in _IMAGES if name.startswith(prefix))
    return name.removeprefix(prefix)


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise UnsupportedCheckpoint(f"config.json: vision_config.{name}={value!r}: expected a whole number from 1")
    return value
