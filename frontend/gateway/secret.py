"""The secret part of an API key: how it is made, and what is kept of it."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "conch_"  # so that people and scanners for leaked secrets recognise a key

_NUM_RANDOM_BYTES = 32
_ID_DIGITS = 16


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)


def hash_of(text: str) -> str:
    """Return what is kept of a key.

    A fast hash without salt will do: against 256 random bits there is neither a dictionary nor a table.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def id_of(sha256: str) -> str:
    """Return what logs and limits know the key with this hash by."""
    return sha256[:_ID_DIGITS]
