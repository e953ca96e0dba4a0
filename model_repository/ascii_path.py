"""Paths for the Python inside Triton, which has no locale: it opens names in ASCII only."""

from __future__ import annotations

import contextlib
import hashlib
import os


def ascii_path(path: str) -> str:
    """Return the path, or a link to it in the current folder, which is Triton's own."""
    if path.isascii():
        return path
    link = hashlib.blake2b(path.encode(), digest_size=8).hexdigest()
    with contextlib.suppress(FileExistsError):  # another stage has made it
        os.symlink(path.encode(), link)
    return link
