"""A LLaVA checkpoint of random weights: the tiny checkpoint, and a vision tower for pictures of 32 x 32 pixels."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.build_engines.tiny_checkpoint import (
    ADDED_TOKENS,
    CONFIG,
    random_weights,
    tokenizer_description,
    write_checkpoint,
)

TEXT: dict[str, Any] = CONFIG | {"model_type": "llama", "bos_token_id": 0, "eos_token_id": 1}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_act": "quick_gelu",
    "hidden_size": 32,
    "image_size": 32,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 8,
    "projection_dim": 32,
}
NUM_IMAGE_TOKENS = 16
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 257,
    "projector_hidden_act": "gelu",
    "text_config": TEXT,
    "vision_config": VISION,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}
PIXELS = {"image_mean": [0.48, 0.45, 0.41], "image_std": [0.27, 0.26, 0.28]}

type Weights = dict[str, npt.NDArray[np.float32]]


def vision_weights(vision: Mapping[str, Any] = VISION, text_size: int = TEXT["hidden_size"], seed: int = 0) -> Weights:
    """Return the tensors of the vision tower and the projector, by the names of LLaVA 1.5."""
    random = np.random.default_rng(seed)
    size, patch = vision["hidden_size"], vision["patch_size"]
    num_places = (vision["image_size"] // patch) ** 2 + 1

    def tensor(*shape: int, mean: float = 0.0) -> npt.NDArray[np.float32]:
        deviation = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.2
        return random.normal(mean, deviation, shape).astype(np.float32)

    weights = {
        "embeddings.class_embedding": tensor(size),
        "embeddings.patch_embedding.weight": tensor(size, 3, patch, patch),
        "embeddings.position_embedding.weight": tensor(num_places, size),
    }
    norms = ["pre_layrnorm", "post_layernorm"]
    linears: dict[str, tuple[int, int]] = {}
    for block in range(vision["num_hidden_layers"]):
        place = f"encoder.layers.{block}"
        norms += [f"{place}.layer_norm1", f"{place}.layer_norm2"]
        linears |= {f"{place}.self_attn.{name}_proj": (size, size) for name in ("q", "k", "v", "out")}
        linears |= {
            f"{place}.mlp.fc1": (vision["intermediate_size"], size),
            f"{place}.mlp.fc2": (size, vision["intermediate_size"]),
        }
    for name in norms:
        weights |= {f"{name}.weight": tensor(size, mean=1.0), f"{name}.bias": tensor(size)}
    for name, shape in linears.items():
        weights |= {f"{name}.weight": 2 * tensor(*shape), f"{name}.bias": tensor(shape[0])}
    named = {f"vision_tower.vision_model.{name}": weight for name, weight in weights.items()}
    for name, shape in (("linear_1", (text_size, size)), ("linear_2", (text_size, text_size))):
        prefix = f"multi_modal_projector.{name}"
        named |= {f"{prefix}.weight": tensor(*shape), f"{prefix}.bias": tensor(shape[0])}
    return named


def write_llava(folder: Path, **config: Any) -> Path:
    """Write a checkpoint folder and return it."""
    weights = {f"language_model.{name}": weight for name, weight in random_weights(TEXT).items()}
    fields: dict[str, Any] = dict.fromkeys(CONFIG) | LLAVA | config
    write_checkpoint(
        folder,
        weights={**weights, **vision_weights()},
        tokenizer=tokenizer_description(["<image>", *ADDED_TOKENS], merges=[("t", "h")]),
        **fields,
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


def picture(seed: int = 0, size: tuple[int, int] = (32, 32), format: str = "PNG") -> bytes:
    """Return an image file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()
