"""Paths that a person types, with the quotes, backslashes and ~ of a shell, and the files as parts of messages."""

from __future__ import annotations

import base64
import io
import mimetypes
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_UNQUOTED = re.compile(r"([^\s\\]|\\.)*")


def path_and_rest(text: str) -> tuple[Path, str]:
    """Split a text behind its first word, a path.

    Raises:
        ValueError: a quotation is not closed.
    """
    rest = io.StringIO(text)
    words = shlex.shlex(rest, posix=True)  # reads a path as a terminal writes a dropped file
    words.whitespace_split, words.commenters = True, ""
    path = os.path.expanduser(words.get_token() or "")
    return Path(path), rest.read().strip()


def completed_paths(text: str) -> Iterator[str]:
    """Yield the texts that a half-typed path may become, with the same quotes."""
    quote = text[:1] if text[:1] in ("'", '"') else ""
    if quote in text[1:] if quote else not _UNQUOTED.fullmatch(text):
        return  # a question follows the path
    typed = text[1:] if quote else re.sub(r"\\(.)", r"\1", text)
    folder, slash, begin = typed.rpartition("/")
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder + slash) or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_shown = entry.name.isprintable() and (begin or not entry.name.startswith("."))
        if is_shown and entry.name.startswith(begin):
            rest = entry.name.removeprefix(begin)
            escaped = rest if quote else re.sub(r"([\s'\"\\])", r"\\\1", rest)
            yield f"{text}{escaped}{'/' if entry.is_dir() else f'{quote} '}"


def image_part(path: Path) -> dict[str, Any]:
    """Return an image as a part of a message.

    Raises:
        ValueError: it is no image.
    """
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise ValueError("expected the name of an image file, such as cat.png")
    return {"type": "image_url", "image_url": {"url": _data_uri(kind, path.read_bytes())}}


def document_part(path: Path) -> dict[str, Any]:
    """Return a document as a part of a message. The server reads its kind from the content.

    Raises:
        ValueError: it is an image.
    """
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("image/"):
        raise ValueError("/image sends images")
    return {"type": "file", "file": {"filename": path.name, "file_data": _data_uri(kind, path.read_bytes())}}


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
