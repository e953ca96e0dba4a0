"""The keys that open the door now: read from the key file, and again whenever it changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from frontend.errors import AuthenticationFailed
from frontend.gateway.key_file import Key, KeyFileError, hash_of, id_of, parse_keys, read_content

logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time by the wall clock."""
    return datetime.now(UTC)


class KeyRing:
    """The keys of a file.

    Args:
        path: the file.
        more_keys: that are not in the file.
        clock: the time of day, aware of its zone.

    Raises:
        KeyFileError: the file cannot be read, or breaks a rule.
    """

    def __init__(self, path: Path, more_keys: Sequence[Key] = (), clock: Callable[[], datetime] = utc_now) -> None:
        self._path = path
        self._more_keys = tuple(more_keys)
        self._clock = clock
        self._content: bytes | None = None
        self._failure = ""  # of the last reading, so that each is logged once
        self._by_id: dict[str, Key] = {}
        self.reload()

    @property
    def num_in_file(self) -> int:
        """How many keys the file has."""
        return len(self._by_id) - len(self._more_keys)

    def authenticate(self, text: str) -> Key:
        """Return the key that a client has sent.

        It is found by the first half of its SHA-256. How long that takes tells nothing: nobody can steer a hash
        towards one in the file. The whole hash is compared in constant time.

        Raises:
            AuthenticationFailed: there is no such key, or it has expired.
        """
        sha256 = hash_of(text)
        key = self._by_id.get(id_of(sha256))
        if key is None or not hmac.compare_digest(key.sha256, sha256):
            raise AuthenticationFailed("The API key is not a key of this server.")
        if key.has_expired(self._clock()):
            raise AuthenticationFailed("The API key has expired.")
        return key

    def reload(self) -> None:
        """Read the file, if it has changed.

        Raises:
            KeyFileError: it cannot be read, or breaks a rule; the old keys stay.
        """
        self._take(read_content(self._path))

    def reload_or_log(self) -> None:
        """Read the file if it has changed; where that fails say so in the log, once, and keep the old keys."""
        try:
            self.reload()
        except KeyFileError as exc:
            self._log(exc)

    async def watch(self, interval_s: float) -> None:
        """Look at the file again and again, until cancelled.

        It is read, not asked for its date: a mounted secret changes by a link to another folder.
        """
        while True:
            await asyncio.sleep(interval_s)
            try:
                self._take(await asyncio.to_thread(read_content, self._path))
            except KeyFileError as exc:
                self._log(exc)

    def _take(self, content: bytes) -> None:
        if content != self._content:
            keys = (*parse_keys(content, self._path), *self._more_keys)
            self._by_id = {key.id: key for key in keys}
            self._content = content
            logger.info("%s has %d keys", self._path, len(keys) - len(self._more_keys))
        self._failure = ""

    def _log(self, exc: KeyFileError) -> None:
        if str(exc) != self._failure:
            logger.error("%s; the keys as they were before stay in force", exc)
        self._failure = str(exc)
