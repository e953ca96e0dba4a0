"""The text of the product's code. Tests look for messages and names in it."""

from __future__ import annotations

import functools
import re

from tests.docs.pages import ROOT

_PATTERNS = ("Makefile", "frontend/**/*.py", "model_repository/**/*.py", "build_engines/**/*.py")
_BETWEEN_PIECES = re.compile(r'"\s*\n\s*f?"')  # of one string


@functools.cache
def code() -> str:
    """Return the code, with the strings that are written in pieces joined."""
    paths = [path for pattern in _PATTERNS for path in ROOT.glob(pattern)]
    return "\n".join(_BETWEEN_PIECES.sub("", path.read_text(encoding="utf-8")) for path in paths)
