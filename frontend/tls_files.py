"""Files of certificates and keys: their versions and errors."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable

type Version = tuple[int, int, int] | None  # None: no such file


def versions_of(paths: Iterable[str]) -> list[Version]:
    """Return the versions of files. A version changes when the file is written or replaced."""
    return [_version_of(path) for path in paths if path]


def _version_of(path: str) -> Version:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def no_password() -> str:
    """Refuse a key with a password, instead of a prompt at the terminal.

    Raises:
        ssl.SSLError: always.
    """
    raise ssl.SSLError("the key is encrypted: give one without a password")


def unverified_context() -> ssl.SSLContext:
    """Return a client's context that checks no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def reason_of(exc: OSError) -> str:
    """Return the reason of an error, without the place in OpenSSL's source."""
    return exc.reason if isinstance(exc, ssl.SSLError) and exc.reason else exc.strerror or str(exc)
