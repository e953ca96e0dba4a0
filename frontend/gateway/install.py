"""The parts of the gateway in an application. An application without the gateway serves every request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.gateway.authentication import KEY_RING, check_caller, key_ring, note_caller
from frontend.gateway.cors import allow_origins
from frontend.gateway.drain import OPEN_PATHS, Drain
from frontend.gateway.limited import add_limit_headers, limits_lifetime
from frontend.handlers.stored import STORE
from frontend.request_context import DRAIN, GATE, KEYS, NOTE_CALLER, SETTINGS, Gate, is_draining
from frontend.store.types import Store, StoreUnavailable

logger = logging.getLogger(__name__)

KEY_INTERVAL_S = 1.0  # pause between checks of the key file for changes


def install_gateway(app: web.Application, tell_others: Callable[[], None] = lambda: None) -> None:
    """Put keys, limits, drain and CORS before the handlers of the API.

    Args:
        app: with its settings.
        tell_others: called when the drain begins, for the other processes on the port.

    Raises:
        KeyFileError: the key file cannot be read, or breaks a rule.
    """
    drain = app[DRAIN] = Drain(tell_others)
    app[GATE], app[NOTE_CALLER] = _guard(drain), note_caller
    if (keys := key_ring(app[SETTINGS])) is not None:
        app[KEYS] = app[KEY_RING] = keys
        app.cleanup_ctx.append(_keys_lifetime)
    app.cleanup_ctx.append(limits_lifetime)
    app.on_response_prepare.append(add_limit_headers)
    allow_origins(app, app[SETTINGS])


def share_gateway(public: web.Application, app: web.Application) -> None:
    """Use the keys and the drain of the API's application for the operations port."""
    app[DRAIN] = public[DRAIN]
    app[GATE] = _guard(contextlib.nullcontext())
    if KEY_RING in public:
        app[KEYS] = app[KEY_RING] = public[KEY_RING]


def _guard(counted: contextlib.AbstractContextManager[None]) -> Gate:
    """Return the function that handles requests of known callers, unless the server drains.

    Args:
        counted: counts a request, or refuses it.
    """

    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            check_caller(request)
            return await handler(request)
        with counted:
            check_caller(request)
            response = await handler(request)
        if is_draining(request.app):
            response.force_close()  # the next request of the connection must find another server
        return response

    return guarded


async def _keys_lifetime(app: web.Application) -> AsyncIterator[None]:
    watching = asyncio.create_task(app[KEY_RING].watch(KEY_INTERVAL_S, partial(_forget, app.get(STORE))))
    yield
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def _forget(store: Store | None, owner: str, name: str) -> bool:
    """Delete the stored objects of a removed key; return whether the store answers."""
    try:
        dropped = None if store is None else await store.drop(owner)
    except StoreUnavailable:
        return False
    if dropped is not None and dropped.num_objects:  # another worker may have been first
        numbers = dropped.num_objects, dropped.num_bytes
        logger.info("the key %s is removed: %d stored objects with %d bytes are deleted", name, *numbers)
    return True
