"""The input processor of Qwen2.5-VL: a text beside pictures to token ids; `multimodal` in the contract."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tensorrt_llm._contract import contract

_PLACE = "<|image_pad|>"


class InputProcessor:
    """Encodes a prompt as the processor of the checkpoint would."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        if config["model_type"] not in contract()["multimodal"]["model_types"]:
            raise ValueError(f"no input processor for {config['model_type']}")
        self._config = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._vocab_size: int = config["vocab_size"]

    def __call__(self, inputs: Mapping[str, Any], sampling_params: Any) -> tuple[list[int], dict[str, Any]]:
        """Return the prompt's token ids, and tensors; this takes its time in the caller's thread."""
        return self.encode(inputs), {}

    def encode(self, inputs: Mapping[str, Any]) -> list[int]:
        """Return the prompt's token ids; each token of an image is of its content, for the double's model."""
        pictures = list(inputs.get("multi_modal_data", {}).get("image", ()))
        place = self._tokenizer.token_to_id(_PLACE)
        token_ids: list[int] = []
        for token_id in self._tokenizer.encode(inputs["prompt"]).ids:
            if token_id == place:
                picture = pictures.pop(0)  # transformers fails here, too, if there are too few
                token_ids += [zlib.crc32(picture.tobytes()) % self._vocab_size] * self._num_tokens(picture)
            else:
                token_ids.append(token_id)
        if pictures:
            raise ValueError("Image features and image tokens do not match")
        return token_ids

    def _num_tokens(self, picture: Any) -> int:
        """Return as many tokens as transformers' smart resizing leaves."""
        unit = self._config["patch_size"] * self._config["merge_size"]
        height, width = (round(side / unit) * unit for side in (picture.height, picture.width))
        num_pixels = picture.height * picture.width
        for limit, is_beyond, rounded in (
            (self._config["max_pixels"], height * width > self._config["max_pixels"], math.floor),
            (self._config["min_pixels"], height * width < self._config["min_pixels"], math.ceil),
        ):
            if is_beyond:
                scale = math.sqrt(limit / num_pixels)
                height, width = (rounded(side * scale / unit) * unit for side in (picture.height, picture.width))
        return (height // unit) * (width // unit)
