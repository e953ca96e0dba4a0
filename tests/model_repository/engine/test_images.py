"""Image files of clients as pixels: four formats, and refusals of everything else."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from model_repository.engine import images
from model_repository.engine.images import MAX_PIXELS, MAX_SCANS, ImageReader, read_images
from model_repository.errors import InvalidRequest
from tests.pictures import jpeg_of_scans

RED, BLUE = (255, 0, 0), (0, 0, 255)


def file_of(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def colour(file: bytes) -> tuple[int, ...]:
    """Return the mean colour of a file's picture."""
    return tuple(np.asarray(read_images([file])[0]).reshape(-1, 3).mean(axis=0).round().astype(int).tolist())


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file that declares a picture and has no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "RGB"), ("PNG", "L"), ("PNG", "P"), ("JPEG", "RGB"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("GIF", "P")],
)
def test_every_format_is_read(format: str, mode: str) -> None:
    read = read_images([file_of(Image.new("RGB", (7, 5), "white").convert(mode), format)])[0]
    assert (read.mode, read.size) == ("RGB", (7, 5))
    assert np.asarray(read).min() > 250


def test_what_is_transparent_is_white() -> None:
    assert colour(file_of(Image.new("RGBA", (4, 4), (0, 0, 0, 0)))) == (255, 255, 255)


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), each) for each in (RED, BLUE)]
    assert colour(file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])) == RED


def test_a_photo_is_turned_upright() -> None:
    photo = Image.new("RGB", (8, 4))
    turned = Image.Exif()
    turned[0x0112] = 6  # Orientation: the camera was turned by 90 degrees
    assert read_images([file_of(photo, "JPEG", exif=turned)])[0].size == (4, 8)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_a_large_picture_is_made_smaller(format: str) -> None:
    assert max(read_images([file_of(Image.new("RGB", (4096, 16)), format)])[0].size) == 2048


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"x",
        b"\x89PNG\r\n\x1a\n",
        png_header(3, 3),
        file_of(Image.effect_noise((50, 50), 50))[:-300],
        file_of(Image.new("RGB", (4, 4)), "BMP"),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
    ],
)
def test_a_broken_file_and_another_format_are_refused(file: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a readable file in one of PNG, JPEG, WEBP, GIF") as caught:
        read_images([file])
    assert caught.value.field == "images[0]"


def test_the_scans_of_a_jpeg_are_limited() -> None:
    """A scan of 33 bytes was computed for 10 ms: 400 kB took a minute."""
    assert len(read_images([jpeg_of_scans(MAX_SCANS)])) == 1
    with pytest.raises(InvalidRequest, match="501 scans: a JPEG may have 500") as caught:
        read_images([jpeg_of_scans(MAX_SCANS + 1)])
    assert caught.value.field == "images[0]"


@pytest.mark.parametrize("rule", ["0.2 s of processor time", "512 MiB of memory"])
def test_costly_files_are_refused_and_the_next_ones_are_read(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(picture: Image.Image, size: tuple[int, int]) -> None:
        if rule.endswith("memory") and picture.width > 100:
            raise MemoryError

    monkeypatch.setattr(images, "MAX_CPU_S", 0.2)
    monkeypatch.setattr(Image.Image, "thumbnail", resize)
    reader = ImageReader()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"decoding them takes more than {rule}") as caught:
            reader.read([jpeg_of_scans(MAX_SCANS, side=101 if rule.endswith("memory") else 2048)])
        assert caught.value.field == "images"
        assert [picture.size for picture in reader.read([file_of(Image.new("RGB", (7, 5)))])] == [(7, 5)]
    reader.close()


@pytest.mark.parametrize("size", [(1, MAX_PIXELS + 1), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_declared_size_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match=r"pixels: an image may have 16777216|not a readable file"):
        read_images([png_header(*size)])
