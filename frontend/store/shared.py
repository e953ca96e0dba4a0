"""A database in the memory of one process, for the workers beside it: they send it their statements."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.store.sql import Database, Rows, Statement
from frontend.store.types import NoAnswer, StoreUnavailable

_LENGTH = struct.Struct("!I")
_TIMEOUT_S = 30.0
_CALL = msgspec.msgpack.Decoder(tuple[list[tuple[str, list[dict[str, Any]]]], bool])  # the arguments of Database.run
_ANSWER = msgspec.msgpack.Decoder(list[list[tuple[Any, ...]]] | str)  # the rows, or why there are none
_ENCODER = msgspec.msgpack.Encoder()


class SharedDatabase:
    """See Database. A worker's connection to the process with the database.

    Args:
        path: of its Unix socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        """See Database."""
        message = _ENCODER.encode((statements, is_conditional))
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._turn:  # those that wait for their turn do not wait longer
                try:
                    answer = await self._answer(message)
                except (OSError, EOFError):  # the process was replaced, and its memory is gone
                    answer = await self._answer(message)
        except (OSError, EOFError, msgspec.DecodeError) as exc:
            kind = NoAnswer if isinstance(exc, TimeoutError) else StoreUnavailable
            raise kind("the process that keeps conversations does not answer") from exc
        if isinstance(answer, str):
            raise StoreUnavailable(answer)
        return answer

    async def _answer(self, message: bytes) -> list[Rows] | str:
        try:
            if self._connection is None:
                self._connection = await asyncio.open_unix_connection(self._path)
            reader, writer = self._connection
            _write(writer, message)
            answer: list[Rows] | str = _ANSWER.decode(await _read(reader))
            return answer
        except BaseException:  # the answer would be taken for that of the next statements
            await self._disconnect()
            raise

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def close(self) -> None:
        """See Database."""
        await self._disconnect()


async def serve_database(database: Database, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Run the statements of one worker until it disconnects."""
    with contextlib.suppress(OSError, EOFError, msgspec.DecodeError):
        while True:
            statements, is_conditional = _CALL.decode(await _read(reader))
            answer: list[Rows] | str
            try:
                answer = await database.run(statements, is_conditional=is_conditional)
            except StoreUnavailable as exc:
                answer = str(exc)
            _write(writer, _ENCODER.encode(answer))
    writer.close()


def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(_LENGTH.pack(len(message)) + message)


async def _read(reader: asyncio.StreamReader) -> bytes:
    [length] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)
