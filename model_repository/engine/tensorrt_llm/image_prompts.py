"""Prompts of a model that reads images. TensorRT-LLM takes them as text beside pictures.

Its input processor encodes the text itself, and gives every token its place in time, height and width. Prompts without
images need these places too, so all prompts of such a model are passed as text.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tokenizers import Tokenizer

from model_repository.contract.request import IMAGE_PLACE, EngineRequest
from model_repository.contract.rules import fitting_max_tokens
from model_repository.engine.images import ImageReader
from model_repository.engine.runtime import Prepared
from model_repository.errors import EngineFailed, InvalidRequest

_CONFIG, _PROCESSOR = "config.json", "preprocessor_config.json"
_MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")
_MAX_RATIO = 200  # the input processor's limit for long side / short side
# The vision transformer of TensorRT-LLM 1.2 has buffers for this many patches.
_MAX_PATCHES = 8192


def reads_images(checkpoint: Path) -> bool:
    """Whether images reach the model in this folder. One of another type with an input processor gets text alone."""
    if not (checkpoint / _PROCESSOR).is_file():
        return False
    return json.loads((checkpoint / _CONFIG).read_text("utf-8")).get("model_type") in _MODEL_TYPES


class ImagePrompts:
    """Makes the inputs of `generate_async` for Qwen2-VL and Qwen2.5-VL.

    Args:
        checkpoint: the folder of the model.
        tokenizer: the file tokenizer.json.

    Raises:
        EngineFailed: a file is missing or malformed.
    """

    def __init__(self, checkpoint: Path, tokenizer: Path, context_window: int) -> None:
        try:
            config, processor = (json.loads((checkpoint / name).read_text("utf-8")) for name in (_CONFIG, _PROCESSOR))
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
            self._begin, self._place, self._end = (
                int(config[f"{name}_token_id"]) for name in ("vision_start", "image", "vision_end")
            )
            # From a client, these tokens would count as pictures, and displace those of other requests in a step.
            self._reserved = {config.get(f"{name}_token_id") for name in ("image", "video", "vision")}
            patch_size = int(processor["patch_size"])
            self._unit = patch_size * int(processor["merge_size"])  # pixels of a token's side
            sizes = processor.get("size", {})  # transformers 5 writes this form
            self._min_pixels = int(processor.get("min_pixels") or sizes["shortest_edge"])
            max_pixels = int(processor.get("max_pixels") or sizes["longest_edge"])
            self._max_pixels = min(max_pixels, _MAX_PATCHES * patch_size**2)
        except Exception as exc:  # tokenizers raises plain exceptions
            raise EngineFailed(f"{checkpoint}: not a model that reads images: {exc!r}") from exc
        self._context_window = context_window
        self._reader = ImageReader()

    def prepare(self, request: EngineRequest) -> Prepared:
        """Read the images of a request, and count their tokens.

        Raises:
            InvalidRequest: an image is not readable, or too narrow.
            PromptTooLong: the prompt does not fit the context window with the images.
        """
        pictures = [self._fitted(picture, index) for index, picture in enumerate(self._reader.read(request.images))]
        remaining = iter(pictures)
        token_ids = tuple(
            itertools.chain.from_iterable(
                self._tokens_of(next(remaining)) if token_id == IMAGE_PLACE else (token_id,)
                for token_id in request.prompt_token_ids
            )
        )
        max_tokens = fitting_max_tokens(request.params, len(token_ids), self._context_window, "images")
        # Without the files: structured outputs send the request to TensorRT-LLM's workers, beside the pictures.
        ready = replace(request, prompt_token_ids=token_ids, max_tokens=max_tokens, images=())
        return Prepared(ready, pictures=tuple(pictures))

    def close(self) -> None:
        self._reader.close()

    def inputs(self, token_ids: Sequence[int], pictures: Sequence[Any]) -> dict[str, Any]:
        """Return a prompt as text, with its pictures.

        Raises:
            InvalidRequest: the text has other tokens, for example because a user's text spells a special token; or the
                prompt has a token of the model for images.
        """
        reserved = next((token_id for token_id in token_ids if token_id in self._reserved), None)
        if reserved is not None:
            raise InvalidRequest(
                f"{reserved}: this model reads the token as an image: send `images`", "prompt_token_ids"
            )
        collapsed = list(self._one_token_per_image(token_ids))
        text = self._tokenizer.decode(collapsed, skip_special_tokens=False)
        if self._tokenizer.encode(text, add_special_tokens=False).ids != collapsed:
            rule = "this model takes prompts as text, and another text or special token has the same spelling"
            raise InvalidRequest(rule, "prompt_token_ids")
        return {"prompt": text} | ({"multi_modal_data": {"image": list(pictures)}} if pictures else {})

    def _one_token_per_image(self, token_ids: Iterable[int]) -> Iterator[int]:
        for is_image, group in itertools.groupby(token_ids, lambda token_id: token_id == IMAGE_PLACE):
            if is_image:
                yield self._place
            else:
                yield from group

    def _fitted(self, picture: Any, index: int) -> Any:
        """Return a picture in a size that the input processor does not change.

        Raises:
            InvalidRequest: it is too narrow.
        """
        width, height = picture.size
        if max(width, height) > _MAX_RATIO * min(width, height):
            rule = f"{width} x {height} pixels: one side may be {_MAX_RATIO} times as long as the other"
            raise InvalidRequest(rule, f"images[{index}]")
        num_pixels = min(max(width * height, self._min_pixels), self._max_pixels)
        scale = math.sqrt(num_pixels / (width * height))
        across, down = (max(1, round(side * scale / self._unit)) for side in (width, height))
        while across * down * self._unit**2 > self._max_pixels:
            across, down = (across - 1, down) if across > down else (across, down - 1)
        while across * down * self._unit**2 < self._min_pixels:
            across, down = (across + 1, down) if across < down else (across, down + 1)
        return picture.resize((across * self._unit, down * self._unit))

    def _tokens_of(self, picture: Any) -> tuple[int, ...]:
        num_tokens = (picture.width // self._unit) * (picture.height // self._unit)
        return (self._begin, *[IMAGE_PLACE] * num_tokens, self._end)
