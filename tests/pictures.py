"""Pictures in colours that the demo model knows, and the messages that show them."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image, ImageDraw

SIDE = 60  # pixels of the demo model's images
COLOURS = {
    "red": (215, 35, 35),
    "green": (40, 150, 60),
    "blue": (40, 80, 210),
    "yellow": (245, 215, 45),
    "orange": (240, 135, 30),
    "purple": (130, 50, 160),
    "black": (20, 20, 20),
    "white": (245, 245, 245),
}


def circle(colour: str, format: str = "PNG", side: int = 120) -> bytes:
    """Return an image file with a large circle."""
    image = Image.new("RGB", (side, side), "white" if colour != "white" else "black")
    ImageDraw.Draw(image).ellipse((side * 0.2, side * 0.2, side * 0.8, side * 0.8), COLOURS[colour])
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


def jpeg_of_scans(number: int, side: int = 8) -> bytes:
    """Return a JPEG of a grey square. Its last scans are the same few bytes again and again."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), "grey").save(file, "JPEG", progressive=True)
    *others, last = file.getvalue().removesuffix(b"\xff\xd9").split(b"\xff\xda")
    return b"\xff\xda".join([*others, *[last] * (number - len(others) + 1)]) + b"\xff\xd9"


def data_uri(file: bytes) -> str:
    """Return an image file as clients send it over HTTP."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def message_with(*files: bytes, question: str) -> dict[str, Any]:
    """Return a user's message with a question behind images."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": data_uri(file)}} for file in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}
