"""What a server keeps for its callers: objects, each with a head and a list of items, and the bounds on them.

A head and an item are bytes, which the store does not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

NO_LIMIT = 2**62
SWEEP_SHARE = 1 / 32  # of a bound: after so much was written, the bound is applied


class Kind(StrEnum):
    """The kinds of objects."""

    RESPONSE = "response"  # its items are those of its input, then those of its output
    CONVERSATION = "conversation"
    CHAT = "chat"
    SECRET = "secret"  # of the server
    WORK = "work"  # a request that is answered in the background
    LOG = "log"  # the chunks of its answer, also at its end


@dataclass(frozen=True, slots=True)
class Item:
    """An item of an object."""

    id: str  # empty: it has none
    value: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """The head of an object."""

    id: str
    head: bytes
    version: int  # it grows with each change of the head
    num_items: int
    created_s: float  # unix time
    num_bytes: int  # of head and items, with what they cost beside them


@dataclass(frozen=True, slots=True)
class Claimed:
    """An object of any owner that nobody has used for some time."""

    owner: str
    id: str
    head: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """What an owner holds."""

    num_objects: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a store. Beyond one the objects that were used longest ago go first; None: no limit.

    Of all bytes each owner may have an equal share, and what others leave of theirs.
    """

    age_s: float | None = None  # since the last use
    max_bytes: int | None = None  # of all owners
    owner_bytes: int | None = None  # of each
    owner_objects: int | None = None  # of each


class StoreUnavailable(RuntimeError):
    """The place of the store does not answer, or is full."""


def unnoted(is_answered: bool) -> None:
    """Count no call of the place."""


class Store(Protocol):
    """Keeps objects. A call for an unknown id, or one of another owner, finds nothing.

    All calls raise StoreUnavailable. A read counts as a use of the object.
    """

    async def create(self, owner: str, kind: Kind, identity: str, head: bytes, items: Sequence[Item] = ()) -> None:
        """Add an object with a new id."""

    async def read(self, owner: str, kind: Kind, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the objects with these ids."""

    async def replace(self, owner: str, identity: str, head: bytes, version: int | None = None) -> bool:
        """Replace a head; return whether the object was there, and had this version if one is given."""

    async def append(self, owner: str, identity: str, items: Sequence[Item]) -> bool:
        """Add items at the end; return whether the object was there."""

    async def items(
        self, owner: str, identity: str, *, after: str = "", limit: int = NO_LIMIT, is_newest_first: bool
    ) -> list[Item] | None:
        """Return items in their order, or in the reverse one; None: `after` is no item of the object.

        Args:
            after: the id of an item; those behind it are returned. Empty: all.
        """

    async def items_of(self, owner: str, ids: Sequence[str]) -> dict[str, list[Item]]:
        """Return all items of several objects."""

    async def find_items(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, bytes]:
        """Return the items with these ids, of one object or of any."""

    async def remove_item(self, owner: str, identity: str, item: str) -> bool:
        """Remove an item; return whether it was there."""

    async def delete(self, owner: str, kind: Kind, identity: str) -> bool:
        """Delete an object; return whether it was there."""

    async def page(
        self, owner: str, kind: Kind, *, after: str = "", limit: int, is_newest_first: bool
    ) -> list[Stored] | None:
        """Return objects in the order of their creation, or in the reverse one; None: `after` is unknown."""

    async def claim(self, kind: Kind, unused_s: float) -> list[Claimed]:
        """Return the objects that were not used for this time. They count as used now: no other process claims them."""

    async def usage(self) -> dict[str, Usage]:
        """Return what each owner holds."""

    async def drop(self, owner: str) -> Usage:
        """Delete all of an owner, and return how much that was."""

    async def sweep(self) -> None:
        """Delete the objects that exceed the bounds."""

    async def close(self) -> None:
        """Close the place."""
