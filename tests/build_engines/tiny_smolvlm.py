"""A SmolVLM checkpoint of random weights: the tiny checkpoint, and a vision tower for tiles of 32 x 32 pixels."""

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
    "model_type": "smolvlm_vision",
    "hidden_size": 32,
    "image_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 8,
}
SCALE_FACTOR = 2
NUM_TILE_TOKENS = 4
IMAGE, FRAME, WHOLE, TILE = IMAGE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>")
TOKENIZER = tokenizer_description([*IMAGE_TOKENS, *ADDED_TOKENS], merges=[("Ċ", "Ċ")])
SMOLVLM = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "model_type": "smolvlm",
    "image_token_id": 257,
    "scale_factor": SCALE_FACTOR,
    "text_config": TEXT,
    "vision_config": VISION,
}
PIXELS = {"image_mean": [0.48, 0.45, 0.41], "image_std": [0.27, 0.26, 0.28], "size": {"longest_edge": 32}}

type Weights = dict[str, npt.NDArray[np.float32]]


def image_token_ids() -> list[int]:
    """Return the tokens of an image of one tile, as the processor of transformers lays them out.

    The tile comes first, then the whole image, which is the same here.
    """
    vocabulary = {token["content"]: token["id"] for token in TOKENIZER["added_tokens"]}
    vocabulary["\n\n"] = TOKENIZER["model"]["vocab"]["ĊĊ"]
    tile = [IMAGE] * NUM_TILE_TOKENS
    return [vocabulary[token] for token in (FRAME, TILE, *tile, "\n\n", FRAME, WHOLE, *tile, FRAME)]


def vision_weights(vision: Mapping[str, Any] = VISION, text_size: int = TEXT["hidden_size"], seed: int = 0) -> Weights:
    """Return the tensors of the vision tower and the projection, by their names in Hugging Face's layout."""
    random = np.random.default_rng(seed)
    size, patch = vision["hidden_size"], vision["patch_size"]

    def tensor(*shape: int, mean: float = 0.0) -> npt.NDArray[np.float32]:
        deviation = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.2
        return random.normal(mean, deviation, shape).astype(np.float32)

    weights = {
        "embeddings.patch_embedding.weight": tensor(size, 3, patch, patch),
        "embeddings.patch_embedding.bias": tensor(size),
        "embeddings.position_embedding.weight": tensor((vision["image_size"] // patch) ** 2, size),
    }
    norms, linears = ["post_layernorm"], dict[str, tuple[int, int]]()
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
    named = {f"model.vision_model.{name}": weight for name, weight in weights.items()}
    named["model.connector.modality_projection.proj.weight"] = 2 * tensor(text_size, size * SCALE_FACTOR**2)
    return named


def write_smolvlm(folder: Path, **config: Any) -> Path:
    """Write a checkpoint folder and return it."""
    text = {name.replace("model.", "model.text_model.", 1): weight for name, weight in random_weights(TEXT).items()}
    fields: dict[str, Any] = dict.fromkeys(CONFIG) | SMOLVLM | config
    write_checkpoint(folder, weights={**text, **vision_weights()}, tokenizer=TOKENIZER, **fields)
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


def pixels(seed: int = 0, size: tuple[int, int] = (32, 32)) -> npt.NDArray[np.uint8]:
    """Return random pixels, [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def picture(seed: int = 0, size: tuple[int, int] = (32, 32), format: str = "PNG") -> bytes:
    """Return an image file of these pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels(seed, size)).save(file, format)
    return file.getvalue()
