"""What a server keeps for its callers: objects, each with a head, a body and a list of items, and the bounds on them.

Head, body and items are bytes, which the store does not read. A head is small: many are read at a time.
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

    id: str  # without spaces; empty: it has none
    value: bytes


@dataclass(frozen=True, slots=True)
class Create:
    """Adds an object, unless one has its id."""

    kind: Kind
    id: str
    head: bytes
    items: Sequence[Item] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Append:
    """Adds items at the end of an object."""

    id: str
    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces the head of an object, and its body if one is given."""

    id: str
    head: bytes
    version: int | None = None  # that the object must have; None: any one
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an object."""

    kind: Kind
    id: str


type Change = Create | Append | Replace | Delete


def written_bytes(change: Change, object_bytes: int, item_bytes: int) -> int:
    """Return the bytes that a change writes.

    Args:
        object_bytes: of an object, beside its values.
        item_bytes: of an item, beside its value.
    """
    match change:
        case Replace():
            return len(change.head) + len(change.body or b"")
        case Delete():
            return 0
    num_bytes = sum(item_bytes + len(item.value) for item in change.items)
    return num_bytes + (object_bytes + len(change.head) + len(change.body) if isinstance(change, Create) else 0)


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Items that follow each other."""

    items: Sequence[Item]
    has_more: bool  # in the range that was asked for


@dataclass(frozen=True, slots=True)
class Stored:
    """An object without its body and its items."""

    id: str
    head: bytes
    version: int  # it grows with each change of the head
    num_items: int
    created_s: float  # unix time
    num_bytes: int  # of head, body and items, with what they cost beside them
    num_body_bytes: int

    @property
    def num_item_bytes(self) -> int:
        """The bytes of its items, at most."""
        return self.num_bytes - self.num_body_bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """An object that `claim` has found."""

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


class NoAnswer(StoreUnavailable):
    """The place of the store has not answered in its time: it may hang."""


def unnoted(is_answered: bool) -> None:
    """Count no call of the place."""


class Store(Protocol):
    """Keeps objects. A call for an unknown id, or one of another owner, finds nothing.

    All calls raise StoreUnavailable; a write may be done nevertheless. `read` counts as a use of an object.
    """

    async def write(self, owner: str, *changes: Change) -> bool:
        """Make changes in one transaction; return whether the first one was possible. If not, none is made.

        A further change of an object that is not there is left out. A further Create has an id that no object has.
        """

    async def create(
        self, owner: str, kind: Kind, identity: str, head: bytes, items: Sequence[Item] = (), body: bytes = b""
    ) -> bool:
        """See Create and `write`."""
        return await self.write(owner, Create(kind, identity, head, items, body))

    async def append(self, owner: str, identity: str, items: Sequence[Item]) -> bool:
        """See Append and `write`."""
        return await self.write(owner, Append(identity, items))

    async def replace(
        self, owner: str, identity: str, head: bytes, version: int | None = None, body: bytes | None = None
    ) -> bool:
        """See Replace and `write`."""
        return await self.write(owner, Replace(identity, head, version, body))

    async def delete(self, owner: str, kind: Kind, identity: str) -> bool:
        """See Delete and `write`."""
        return await self.write(owner, Delete(kind, identity))

    async def read(self, owner: str, kind: Kind, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the objects with these ids."""

    async def bodies(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the bodies of objects."""

    async def items(
        self,
        owner: str,
        identity: str,
        *,
        start: int = 0,
        stop: int = NO_LIMIT,
        after: str = "",
        limit: int = NO_LIMIT,
        max_bytes: int = NO_LIMIT,
        is_newest_first: bool,
    ) -> ItemPage | None:
        """Return items in their order, or in the reverse one; None: `after` is no item of the range.

        Args:
            start: the number of the first item of the range.
            stop: the number of the first item behind it.
            after: the id of an item; those behind it are returned. Empty: all.
            limit: of the number of items.
            max_bytes: of their values. The first item is returned also if it has more.
        """

    async def items_of(self, owner: str, ids: Sequence[str]) -> dict[str, list[Item]]:
        """Return all items of several objects."""

    async def find_items(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, bytes]:
        """Return the items with these ids, of one object or of any."""

    async def item_sizes(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, int]:
        """Return the bytes of the items that `find_items` returns."""

    async def remove_item(self, owner: str, identity: str, item: str) -> bool:
        """Remove an item; return whether it was there."""

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
