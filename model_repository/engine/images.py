"""Image files of clients as pixels."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps

from model_repository.errors import InvalidRequest

MAX_PIXELS = 1 << 24  # before the decoding: a small file may declare a huge picture
_MAX_SIDE = 2048  # a larger picture is made smaller, as OpenAI does
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def read_image(file: bytes, field: str) -> Image.Image:
    """Return a picture in RGB, upright and on white: of an animation the first frame.

    Raises:
        InvalidRequest: the file is broken, too large, or of another format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limits, and broken metadata
            opened = Image.open(io.BytesIO(file), formats=_FORMATS)
            if opened.width * opened.height > MAX_PIXELS:
                size = f"{opened.width} x {opened.height} pixels"
                raise InvalidRequest(f"{size}: it may have {MAX_PIXELS} of them", field)
            opened.draft("RGB", (_MAX_SIDE, _MAX_SIDE))  # a large JPEG is decoded to fewer pixels
            picture = ImageOps.exif_transpose(opened).convert("RGBA")
            picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
    except InvalidRequest:
        raise
    except Exception as exc:  # Pillow's readers raise many kinds
        raise InvalidRequest(f"not a readable file in one of {', '.join(_FORMATS)}", field) from exc
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
