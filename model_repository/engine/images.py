"""Image files of clients as pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from model_repository.errors import InvalidRequest
from model_repository.system.bounded_process import BoundedProcess, TooCostly

MAX_PIXELS = 1 << 24  # checked before the decoding: a small file may declare a huge picture
# Of a JPEG. A scan of some bytes takes as long as a whole picture; encoders write about ten. TurboJPEG
# (TJFLAG_LIMITSCANS) and NVIDIA's DALI have the same limit.
MAX_SCANS = 500
MAX_CPU_S = 4.0  # a request's: photos of 12 million pixels take 0.2 s each as JPEG, 0.4 s as PNG
MAX_BYTES = 512 << 20
_START_OF_SCAN = b"\xff\xda"
_MAX_SIDE = 2048  # a larger picture is made smaller, as OpenAI does
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


type Picture = Image.Image


class ImageReader:
    """Reads image files in a process that the kernel ends beyond its limits of time and memory."""

    def __init__(self) -> None:
        self._process = BoundedProcess(read_images, max_cpu_s=MAX_CPU_S, max_bytes=MAX_BYTES, is_kept=True)

    def read(self, files: Sequence[bytes]) -> list[Picture]:
        """Return the pictures of a request.

        Raises:
            InvalidRequest: from `read_images`, or the files together exceed a limit.
        """
        try:
            pictures: list[Picture] = self._process.call(files)
        except TooCostly as exc:
            raise InvalidRequest(f"decoding them takes {exc}, which is the limit", "images") from exc
        return pictures

    def close(self) -> None:
        self._process.close()


def read_images(files: Sequence[bytes]) -> list[Picture]:
    """Return pictures in RGB, upright and on white: of an animation the first frame.

    Raises:
        InvalidRequest: a file is broken, of another format, or has too many pixels or scans.
    """
    return [_read_image(file, f"images[{index}]") for index, file in enumerate(files)]


def _read_image(file: bytes, field: str) -> Picture:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limits, and broken metadata
            opened = Image.open(io.BytesIO(file), formats=_FORMATS)
            if opened.width * opened.height > MAX_PIXELS:
                size = f"{opened.width} x {opened.height} pixels"
                raise InvalidRequest(f"{size}: an image may have {MAX_PIXELS}", field)
            if isinstance(opened, JpegImageFile) and (num_scans := file.count(_START_OF_SCAN)) > MAX_SCANS:
                raise InvalidRequest(f"{num_scans} scans: a JPEG may have {MAX_SCANS}", field)
            opened.draft("RGB", (_MAX_SIDE, _MAX_SIDE))  # a large JPEG is decoded to fewer pixels
            picture = ImageOps.exif_transpose(opened)
            picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
            picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
    except (InvalidRequest, MemoryError):
        raise
    except Exception as exc:  # Pillow's readers raise many kinds
        raise InvalidRequest(f"not a readable file in one of {', '.join(_FORMATS)}", field) from exc
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture
