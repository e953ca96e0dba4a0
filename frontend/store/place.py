"""The place that `--store` names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from frontend.request_context import STORE_SOCKET
from frontend.settings import Settings, SettingsError
from frontend.store.shared import SharedDatabase
from frontend.store.sql import Database, SqlStore
from frontend.store.sqlite import MEMORY, SqliteDatabase
from frontend.store.types import Bounds, Store, unnoted

NONE = "none"
IN_MEMORY = "memory"
_MEMORY_BYTES, _MEMORY_AGE_S = 64 << 20, 3600.0
_AGE_S = 30 * 86400.0


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds of the settings' store, or the usual ones of its place."""
    is_memory = settings.store in ("", IN_MEMORY)
    return Bounds(
        age_s=settings.store_age_s or (_MEMORY_AGE_S if is_memory else _AGE_S),
        max_bytes=settings.store_bytes or (_MEMORY_BYTES if is_memory else None),
        owner_bytes=settings.store_key_bytes or None,
        owner_objects=settings.store_key_objects or None,
    )


def outlives_frontend(settings: Settings) -> bool:
    """Whether another frontend finds what this one has stored."""
    return settings.store not in ("", IN_MEMORY)


def place_of(settings: Settings) -> str:
    """Return the place in words for the log, without credentials."""
    scheme, _, rest = settings.store.partition("://")
    if not rest:
        return settings.store or IN_MEMORY
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def open_store(settings: Settings, note: Callable[[bool], None] = unnoted) -> Store | None:
    """Open the store; None: nothing is stored.

    Args:
        note: called after each call of the place with whether it answered.

    Raises:
        SettingsError: the place cannot be opened.
    """
    bounds = bounds_of(settings)
    match settings.store.partition(":")[0] or IN_MEMORY:
        case "none":
            return None
        case "redis" | "rediss" | "unix":
            from frontend.store.redis_store import RedisStore  # it imports a large library

            return RedisStore(settings.store, bounds, note=note)
        case "postgresql" | "postgres":
            return SqlStore(_postgres(settings.store), bounds, note=note)
        case "memory" if socket := os.environ.get(STORE_SOCKET):
            return SqlStore(SharedDatabase(socket), bounds, note=note)
        case place:
            return SqlStore(SqliteDatabase(MEMORY if place == IN_MEMORY else Path(settings.store)), bounds, note=note)


def check_place(settings: Settings) -> None:
    """Check the URL or the file of the store.

    Raises:
        SettingsError: the place cannot be opened.
    """
    store = open_store(settings)
    if store is not None:
        asyncio.run(store.close())


def _postgres(url: str) -> Database:
    try:
        from frontend.store.postgres import PostgresDatabase
    except ImportError as exc:
        raise SettingsError("--store: PostgreSQL needs the extra `postgres`: pip install conch[postgres]") from exc
    return PostgresDatabase(url)
