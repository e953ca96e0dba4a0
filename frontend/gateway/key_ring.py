"""The API keys in force: the keys of the key file, which is read again when it changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from frontend.errors import AuthenticationFailed
from frontend.gateway.key_file import Key, KeyFileError, hash_of, id_of, parse_keys, read_content

logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time of the wall clock."""
    return datetime.now(UTC)


class KeyRing:
    """The keys of a file. A file that cannot be read or breaks a rule raises KeyFileError."""

    def __init__(self, path: Path, clock: Callable[[], datetime] = utc_now) -> None:
        self._path = path
        self._clock = clock
        self._content: bytes | None = None
        self._logged_failure = ""  # the last reading's; empty: it succeeded
        self._keys: dict[str, Key] = {}
        self._removed: dict[
            str, str
        ] = {}  # owners of what is stored for keys that the file has no more, to their names
        self.reload()

    @property
    def num_keys(self) -> int:
        return len(self._keys)

    @property
    def owners(self) -> dict[str, str]:
        """The owners of what is stored for the keys, to the names of the keys."""
        return {key.caller().owner: key.name for key in self._keys.values()}

    def authenticate(self, text: str) -> Key:
        """Return the key that a client sent.

        The first digits of its SHA-256 find it; the duration of this search says nothing, because a client cannot
        choose a hash. The comparison of the whole hashes takes constant time.

        Raises:
            AuthenticationFailed: the key is unknown or has expired.
        """
        sha256 = hash_of(text)
        key = self._keys.get(id_of(sha256))
        if key is None or not hmac.compare_digest(key.sha256, sha256):
            raise AuthenticationFailed("The API key is not a key of this server.")
        if key.has_expired(self._clock()):
            raise AuthenticationFailed("The API key has expired.")
        return key

    def of_owner(self, owner: str) -> Key:
        """Return the key with this owner.

        Raises:
            AuthenticationFailed: it was removed or has expired.
        """
        for key in self._keys.values():
            if key.caller().owner == owner and not key.has_expired(self._clock()):
                return key
        raise AuthenticationFailed("The API key was removed or has expired.")

    def reload(self) -> None:
        """Read the file and, if it has changed, replace the keys.

        Raises:
            KeyFileError: the file cannot be read, or breaks a rule; the old keys stay in force.
        """
        content = read_content(self._path)
        if content != self._content:
            known = self._removed | self.owners
            self._keys = {key.id: key for key in parse_keys(content, self._path)}
            self._content = content
            owners = self.owners
            self._removed = {owner: name for owner, name in known.items() if owner not in owners}
            logger.info("%s has %d keys", self._path, self.num_keys)
        self._logged_failure = ""

    def reload_or_log(self) -> None:
        """Read the file like `reload`, but log a failure, once."""
        try:
            self.reload()
        except KeyFileError as exc:
            if str(exc) != self._logged_failure:
                logger.error("%s; the old keys stay in force", exc)
            self._logged_failure = str(exc)

    async def watch(self, interval_s: float, forget: Callable[[str, str], Awaitable[bool]]) -> None:
        """Read the file at each interval until cancelled.

        The date of the file is not enough: a mounted secret changes by a link to another folder.

        Args:
            forget: deletes what is stored for a removed key, by its owner and its name, and returns whether it did;
                otherwise it is called again.
        """
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.reload_or_log)
            for owner, name in [*self._removed.items()]:
                if await forget(owner, name):
                    self._removed.pop(owner, None)
