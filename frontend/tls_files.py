"""Files of certificates and keys: whether they have changed, and what is wrong with them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable

type Version = tuple[int, int, int] | None  # None: it is not there


def versions_of(paths: Iterable[str]) -> list[Version]:
    """Return what is another value once a file is written or replaced, for each of those that are named at all."""
    return [_version_of(path) for path in paths if path]


def _version_of(path: str) -> Version:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def no_password() -> str:
    """Refuse a key that needs a password, in place of asking whoever is at the terminal.

    Raises:
        ssl.SSLError: always.
    """
    raise ssl.SSLError("the key is encrypted: give one without a password")


def reason_of(exc: OSError) -> str:
    """Return what is wrong with files, without the place in OpenSSL's source."""
    return exc.reason if isinstance(exc, ssl.SSLError) and exc.reason else exc.strerror or str(exc)
