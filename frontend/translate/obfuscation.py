"""Padding that hides from onlookers how long the pieces of an encrypted stream are."""

from __future__ import annotations

import secrets
import string

_BLOCK = 16  # the sizes that are left to tell apart
_ALPHABET = string.ascii_letters + string.digits


def padding(num_chars: int) -> str:
    """Return random characters that fill a piece of so many up to a whole number of blocks; never none."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_BLOCK - num_chars % _BLOCK))
