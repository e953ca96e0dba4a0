"""What the handlers share about the store: its calls, its owners, and pages of what is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import orjson
from aiohttp import web

from frontend.errors import InvalidRequest, NotFound, NotStored, StoreFailed, shown
from frontend.handlers.bodies import reserve
from frontend.request_context import FACTS, SETTINGS
from frontend.store.place import open_store, place_of
from frontend.store.types import NO_LIMIT, Delete, Kind, Store, Stored, StoreUnavailable
from frontend.telemetry.definitions import STORE_CALLS, STORED_BYTES, STORED_OBJECTS
from frontend.telemetry.metrics import Metrics
from frontend.telemetry.observer import OBSERVER

logger = logging.getLogger(__name__)

STORE: web.AppKey[Store] = web.AppKey("store")  # missing: nothing is stored
_SWEEP_S = 60.0
_PAGE, _MAX_PAGE = 20, 100
_ID = re.compile("[!-~]{1,256}")
OF_SERVER, SUMMARIES_SECRET = "", "summaries"  # owner and id of the secret that signs summaries


async def store_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Open the store, and keep it within its bounds."""
    settings, metrics = app[SETTINGS], app[OBSERVER].metrics

    def note(is_answered: bool) -> None:
        metrics.series(STORE_CALLS, "ok" if is_answered else "failed").inc()

    store = open_store(settings, note)
    if store is None:
        yield
        return
    app[STORE] = store
    logger.info("answers and conversations are stored in %s", place_of(settings))
    sweeping = asyncio.create_task(_sweep(store, metrics))
    yield
    sweeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sweeping
    await store.close()


async def _sweep(store: Store, metrics: Metrics) -> None:
    is_well = True
    while True:
        try:
            await store.read(OF_SERVER, Kind.SECRET, [SUMMARIES_SECRET])  # so that it does not expire
            await store.sweep()
            usage = (await store.usage()).values()
            metrics.series(STORED_OBJECTS).set(sum(each.num_objects for each in usage))
            metrics.series(STORED_BYTES).set(sum(each.num_bytes for each in usage))
            is_well = True
        except StoreUnavailable as exc:
            if is_well:
                logger.error("%s", exc)
            is_well = False
        await asyncio.sleep(_SWEEP_S)


def store_of(request: web.Request) -> Store:
    """Return the store.

    Raises:
        NotFound: the server stores nothing.
    """
    if (store := request.app.get(STORE)) is None:
        raise NotFound("This server stores nothing (--store none)")
    return store


def owner_of(request: web.Request) -> str:
    """Return the owner of what a request stores."""
    return request[FACTS].caller.owner


async def stored[Result](call: Awaitable[Result]) -> Result:
    """Return the result of a call of the store.

    Raises:
        StoreFailed: its place does not answer.
    """
    try:
        return await call
    except StoreUnavailable as exc:
        logger.error("%s", exc)
        raise StoreFailed("The place of stored conversations does not answer") from exc


def not_stored(name: str, identity: str, code: str | None = None) -> NotStored:
    """Return the error of an id that a field or a path names."""
    rule = "nothing of this id is stored: it was deleted, it has expired, or another key stored it"
    return NotStored(f"{name}={shown(identity)}: {rule}", param=name, code=code)


def is_id(text: str) -> bool:
    """Whether a text can be the id of something stored."""
    return _ID.fullmatch(text) is not None


def id_in(request: web.Request, name: str) -> str:
    """Return the id that a path has.

    Raises:
        NotStored: it cannot be one.
    """
    identity = request.match_info[name]
    if not is_id(identity):
        raise not_stored(name, identity)
    return identity


async def find_stored(request: web.Request, kind: Kind, name: str, identity: str) -> Stored:
    """Return an object of the caller.

    Args:
        name: the field or the part of the path that has the id.

    Raises:
        NotStored: it is not there.
    """
    found = await stored(store_of(request).read(owner_of(request), kind, [identity]))
    if not found:
        raise not_stored(name, identity)
    return found[identity]


async def delete_stored(request: web.Request, kind: Kind, name: str, identity: str, *others: Delete) -> None:
    """Delete an object of the caller, and others with it; see `find_stored`."""
    if not await stored(store_of(request).write(owner_of(request), Delete(kind, identity), *others)):
        raise not_stored(name, identity)


async def body_of(request: web.Request, found: Stored) -> bytes:
    """Return the body of an object, in bounded memory.

    Raises:
        NotStored: the object was deleted in the meantime.
    """
    await reserve(request, found.num_body_bytes)
    bodies = await stored(store_of(request).bodies(owner_of(request), [found.id]))
    if found.id not in bodies:
        raise not_stored("id", found.id)
    return bodies[found.id]


async def listed_items(request: web.Request, found: Stored, page: Page, *, stop: int = NO_LIMIT) -> dict[str, Any]:
    """Return a page of the items of an object; it ends early where they are large.

    Args:
        stop: the number of the first item that is left out.

    Raises:
        NotStored: `after` names no item.
    """
    max_bytes = request.app[SETTINGS].max_body_bytes
    await reserve(request, min(found.num_item_bytes, max_bytes))
    items = await stored(
        store_of(request).items(
            owner_of(request),
            found.id,
            stop=stop,
            after=page.after,
            limit=page.limit,
            max_bytes=max_bytes,
            is_newest_first=page.is_newest_first,
        )
    )
    if items is None:
        raise not_stored("after", page.after)
    values = [orjson.Fragment(item.value) for item in items.items]
    return listed([item.id for item in items.items], values, has_more=items.has_more)


def listed(ids: Sequence[str], objects: Sequence[Any], *, has_more: bool) -> dict[str, Any]:
    """Return a page of a list."""
    first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
    return {"object": "list", "data": objects, "first_id": first_id, "last_id": last_id, "has_more": has_more}


class Page:
    """The page of a list that a query asks for.

    Raises:
        InvalidRequest: the query breaks a rule.
    """

    def __init__(self, request: web.Request, *, is_newest_first: bool = True) -> None:
        limit = request.query.get("limit", str(_PAGE))
        if not re.fullmatch("[1-9][0-9]{0,2}", limit) or int(limit) > _MAX_PAGE:
            raise InvalidRequest(f"limit={shown(limit)}: must be an integer from 1 to {_MAX_PAGE}", param="limit")
        order = request.query.get("order", "desc" if is_newest_first else "asc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order={shown(order)}: must be asc or desc", param="order")
        self.limit = int(limit)
        self.after = request.query.get("after", "")
        if self.after and not is_id(self.after):
            raise not_stored("after", self.after)
        self.is_newest_first = order == "desc"
