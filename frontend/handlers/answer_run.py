"""One run of the work on an answer in the background: it writes the answer's log, and stores its end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from frontend.errors import EngineFailed
from frontend.handlers.answer_log import Entry, Failure, LogReader, Replay, log_id
from frontend.handlers.call import Call
from frontend.handlers.generation import Generation
from frontend.handlers.large_answers import LARGE_ANSWERS
from frontend.handlers.turns import ResponseHead, has_compaction, made_items, written
from frontend.protocol.response_objects import Response
from frontend.request_context import Admitted
from frontend.store.types import Append, Change, Delete, Kind, Replace, Store, StoreUnavailable
from frontend.translate.responses_reply import ResponsesReply
from frontend.triton.chunk_queue import Announced, Resumed
from model_repository.contract.output import GenerationChunk

CHECK_S = 1.0  # between two touches of the work; a client's stop is seen then
FLUSH_S = 0.1  # between two entries of a log
_MAX_RUNS = 16  # of one work: its process may die with it each time


class WorkHead(Struct, frozen=True):
    """The head of work. Its body is the GenerationRequest."""

    response_id: str
    request_id: str
    remote: str  # the client's address
    organization: str
    project: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Work:
    """The work on one answer."""

    owner: str
    head: WorkHead

    @property
    def id(self) -> str:
        """Its id in the store."""
        return work_id(self.head.response_id)

    def packed_head(self) -> bytes:
        """Return the stored form of its head."""
        return msgspec.msgpack.encode(self.head)


def work_id(response_id: str) -> str:
    """Return the id of the work on an answer."""
    return "work_" + response_id.removeprefix("resp_")


class Lost(Exception):
    """The answer was deleted, or another process goes on with it."""


class Cancelled(Exception):
    """The client has stopped the answer."""


class Run:
    """One run of the work on an answer.

    Args:
        version: of the stored work.
    """

    def __init__(self, store: Store, work: Work, replay: Replay, version: int) -> None:
        self.replay = replay
        self._store, self._work = store, work
        self._number = version + 1  # the version of the work in this run
        self._num_entries = 1
        self._unwritten = [Entry(self._number, time_s=time.time())]
        self._checked_s = 0.0

    async def begin(self) -> None:
        """End the run before, and find where it was.

        Raises:
            Lost, Cancelled: the run must stop.
            StoreUnavailable: see Store.
        """
        if not await self._store.replace(self._work.owner, self._work.id, self._work.packed_head(), self._number - 1):
            raise Lost
        await self._flush()
        await LogReader(self._store, self._work.owner, self._work.head.response_id).read_into(self.replay)
        await self._check()

    def resumed(self) -> dict[str, Any]:
        """Return the parameters with which the rest of the answer is generated.

        Raises:
            EngineFailed: the answer cannot go on.
        """
        if self.replay.num_runs > _MAX_RUNS:
            raise EngineFailed("The answer was begun too often.")
        return {"resume_token_ids": self.replay.token_ids(), "cancel_key": secrets.token_hex(16)}

    def add(
        self, chunks: Sequence[GenerationChunk], failure: Failure | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Add an entry to the log."""
        entry = Entry(self._number, self._num_entries, chunks, time.time(), failure, is_cancelled)
        self._num_entries += 1
        self.replay.events(entry)
        self._unwritten.append(entry)

    async def keep(self) -> None:
        """Write the log, and watch for a stop. A store that does not answer is asked again later.

        Raises:
            Lost, Cancelled: the run must stop.
        """
        with contextlib.suppress(StoreUnavailable):
            await self._flush()
            if time.monotonic() >= self._checked_s + CHECK_S:
                self._checked_s = time.monotonic()
                await self._check()

    async def end(self, failure: Failure | None = None, *, is_cancelled: bool = False) -> None:
        """Store the end of the answer, however long the store does not answer.

        Raises:
            Lost: another process goes on with it, or it was deleted.
        """
        if not self.replay.is_over:
            self.add((), failure, is_cancelled=is_cancelled)
        response = self.replay.reply.ended
        assert response is not None, "an answer ends with its last event"
        may_be_stored = False
        while True:
            try:
                await self._flush()
                with contextlib.suppress(Cancelled):  # too late
                    await self._check()
                may_be_stored = True
                await self._store_end(response)
                return
            except Lost:
                if may_be_stored:  # the reply to it was lost
                    return
                raise
            except StoreUnavailable:
                await asyncio.sleep(CHECK_S)

    async def _flush(self) -> None:
        """Write the entries, each again until the store confirms it."""
        log = log_id(self._work.head.response_id)
        while self._unwritten:
            if not await self._store.append(self._work.owner, log, [self._unwritten[0].item()]):
                raise Lost
            del self._unwritten[0]

    async def _check(self) -> None:
        """Touch the work and the answer.

        Raises:
            Lost, Cancelled: the run must stop.
        """
        owner, response_id = self._work.owner, self._work.head.response_id
        work = (await self._store.read(owner, Kind.WORK, [self._work.id])).get(self._work.id)
        found = (await self._store.read(owner, Kind.RESPONSE, [response_id])).get(response_id)
        head = None if found is None else msgspec.json.decode(found.head, type=ResponseHead)
        if work is None and head is not None and head.is_running:  # a bound has deleted it: an answer goes as a whole
            await self._store.write(owner, Delete(Kind.RESPONSE, response_id), Delete(Kind.LOG, log_id(response_id)))
        if work is None or work.version != self._number or head is None:
            raise Lost
        if head.is_cancelled:
            raise Cancelled

    async def _store_end(self, response: Response) -> None:
        """Store the end of an answer, and end the work. Without the work nothing is changed: all was stored before."""
        store, owner, identity = self._store, self._work.owner, self._work.head.response_id
        changes: list[Change] = [Delete(Kind.WORK, self._work.id)]
        if found := (await store.read(owner, Kind.RESPONSE, [identity])).get(identity):
            head = msgspec.json.decode(found.head, type=ResponseHead)
            made, body = await asyncio.to_thread(lambda: (made_items(response), written(response)))
            is_compacted = head.is_compacted or has_compaction(made)
            ended = msgspec.json.encode(replace(head, is_running=False, is_compacted=is_compacted))
            changes += Append(identity, made), Replace(identity, ended, body=body)
            if head.conversation is not None and response["status"] in ("completed", "incomplete"):
                given = await store.items(owner, identity, stop=head.num_input, is_newest_first=False)
                changes.append(Append(head.conversation, [*(given.items if given else ()), *made]))
        await store.write(owner, *changes)


class LoggedGeneration(Generation[ResponsesReply]):
    """The generation of an answer, or of its rest. Its chunks go to the log."""

    def __init__(self, call: Call[Any], admitted: Admitted, run: Run) -> None:
        super().__init__(call, admitted, run.replay.reply)
        [generation] = admitted.generations
        admitted.generations = [replace(generation, params=replace(generation.params, **run.resumed()))]
        self._run = run
        self._unlogged: list[GenerationChunk] = []

    async def to_the_end(self) -> None:
        """Generate all, and write the log meanwhile.

        Raises:
            Lost, Cancelled: it was stopped.
            APIError: it failed.
        """
        reading = asyncio.create_task(self._within_time(self._read()))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=FLUSH_S)
                self._log()
                await self._run.keep()
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._log()

    async def _read(self) -> None:
        memory = self._app[LARGE_ANSWERS]
        async with self._chunks() as chunks:
            self._run.add(())
            async for index, chunk in chunks:
                if isinstance(chunk, Announced | Resumed):
                    self._new_headers(chunk)
                    continue
                assert isinstance(chunk, GenerationChunk), "a vector has no log"
                self._record.add(index, chunk)
                memory.count(self._request, self._call.name, chunk)
                self._unlogged.append(chunk)

    def _log(self) -> None:
        """Make an entry of the chunks since the last one."""
        if self._unlogged:
            chunks, self._unlogged = self._unlogged, []
            self._run.add(chunks)
