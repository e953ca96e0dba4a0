"""Answers in the background: their work goes on when the client has left, and in another process when this one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import msgspec
import orjson
from aiohttp import HttpVersion11, web
from aiohttp.http import RawRequestMessage
from msgspec import Struct
from msgspec.structs import replace as replaced
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from frontend.errors import APIError, Draining, EngineFailed, ModelNotFound, Overloaded, RateLimited, StoreFailed
from frontend.handlers.answer_log import Entry, Failure, LogReader, Replay, log_head, log_id
from frontend.handlers.bodies import LARGE_BODIES, LARGE_BYTES, work_on_body
from frontend.handlers.call import Call
from frontend.handlers.completions import chat_generations, fetch_images
from frontend.handlers.documents import with_documents
from frontend.handlers.generation import Generation, admit
from frontend.handlers.large_answers import LARGE_ANSWERS, release_memory
from frontend.handlers.stored import STORE, stored
from frontend.handlers.turns import ResponseHead, Turn, made_items, written
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.response_objects import Response
from frontend.protocol.responses import ResponsesRequest
from frontend.request_context import (
    CLIENT_CLOSED,
    CLIENT_CLOSED_REQUEST,
    DRAIN,
    FACTS,
    NOTE_CALLER,
    SETTINGS,
    Admitted,
    RequestFacts,
    find_model,
    is_draining,
    sender_of,
    unexpected,
)
from frontend.store.place import outlives_frontend
from frontend.store.types import Claimed, Item, Kind, Store, StoreUnavailable
from frontend.telemetry.observer import OBSERVER
from frontend.translate.places import Places
from frontend.translate.responses_reply import ResponsesReply
from frontend.triton.chunk_queue import Announced, Resumed
from model_repository.contract.codec import pack
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest

MAX_WORKS = 64  # of an owner at a time
LEASE_S = 5.0  # after which work that no process touches is continued by another one
CHECK_S = 1.0  # between two touches; a client's stop is seen then
FLUSH_S = 0.1  # between two entries of a log
CLAIM_S = 2.0
_MAX_RUNS = 16  # of one work: its process may die with it each time
_LAST_RUN = 2**31
_GONE_S = 600.0  # after the beginning of an answer, a model that is not there does not come back
_PATH = "/v1/responses"

logger = logging.getLogger(__name__)


class WorkHead(Struct, frozen=True):
    """The head of work. Its only item is the GenerationRequest."""

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


def work_id(response_id: str) -> str:
    """Return the id of the work on an answer."""
    return "work_" + response_id.removeprefix("resp_")


class _Lost(Exception):
    """The answer was deleted, or another process goes on with it."""


class _Cancelled(Exception):
    """The client has stopped the answer."""


class _Running(Generation[ResponsesReply]):
    """One run of the work on an answer. It writes the log."""

    def __init__(self, call: Call[Any], admitted: Admitted, work: Work, replay: Replay, store: Store) -> None:
        super().__init__(call, admitted, replay.reply)
        self._work, self._replay, self._store = work, replay, store
        self.run = 0  # its number; the version of the stored work
        self._unsaid: list[GenerationChunk] = []  # chunks that are in no entry
        self._num_entries = 0
        self._unwritten: list[Entry] = []

    async def begin(self) -> None:
        """End the run before, and find where it was.

        Raises:
            _Lost: another process goes on with it.
            EngineFailed: the answer cannot go on.
            StoreUnavailable: see Store.
        """
        store, owner, work_id = self._store, self._work.owner, self._work.id
        found = (await store.read(owner, Kind.WORK, [work_id])).get(work_id)
        if found is None or not await store.replace(owner, work_id, found.head, found.version):
            raise _Lost
        self.run = found.version + 1
        self._unwritten.append(Entry(self.run, time_s=time.time()))
        self._num_entries = 1
        await self._flush()
        await LogReader(store, owner, self._reply.id).read_into(self._replay)
        if self.run > _MAX_RUNS:
            raise EngineFailed("The answer was begun too often.")
        [generation] = self._admitted.generations
        again = {"resume_token_ids": self._replay.token_ids(), "cancel_key": secrets.token_hex(16)}
        self._admitted.generations = [replaced(generation, params=replaced(generation.params, **again))]

    async def generate(self) -> None:
        """Generate the rest of the answer.

        Raises:
            _Lost, _Cancelled: it was stopped.
            APIError: it failed.
        """
        if self._replay.is_over:
            return
        tasks = [asyncio.create_task(self._within_time(self._read())), asyncio.create_task(self._keep())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self, failure: Failure | None = None, *, is_cancelled: bool = False) -> None:
        """Store the end of the answer, however long the store does not answer.

        Raises:
            _Lost: another process goes on with it, or it was deleted.
        """
        if not self._replay.is_over:
            self._add(failure, is_cancelled=is_cancelled)
        response = self._replay.reply.ended
        assert response is not None, "an answer ends with its last event"
        while True:
            try:
                await self._flush()
                with contextlib.suppress(_Cancelled):  # too late
                    await self._check()
                await _keep_end(self._store, self._work, response)
                return
            except StoreUnavailable:
                await asyncio.sleep(CHECK_S)

    async def _read(self) -> None:
        memory = self._app[LARGE_ANSWERS]
        async with self._chunks() as chunks:
            self._add()
            async for index, chunk in chunks:
                if isinstance(chunk, Announced | Resumed):
                    self._new_headers(chunk)
                    continue
                assert isinstance(chunk, GenerationChunk), "a vector has no log"
                self._record.add(index, chunk)
                memory.count(self._request, self._call.name, chunk)
                self._unsaid.append(chunk)
        self._add()

    def _add(self, failure: Failure | None = None, *, is_cancelled: bool = False) -> None:
        """Make an entry of the chunks so far."""
        chunks, self._unsaid = self._unsaid, []
        entry = Entry(self.run, self._num_entries, chunks, time.time(), failure, is_cancelled)
        self._num_entries += 1
        self._replay.events(entry)
        self._unwritten.append(entry)

    async def _flush(self) -> None:
        """Write the entries, each again until the store confirms it."""
        while self._unwritten:
            if not await self._store.append(self._work.owner, log_id(self._reply.id), [self._unwritten[0].item()]):
                raise _Lost
            del self._unwritten[0]

    async def _keep(self) -> None:
        """Write the log, and watch for a stop, until cancelled."""
        checked_s = time.monotonic()
        while True:
            await asyncio.sleep(FLUSH_S)
            if self._unsaid:
                self._add()
            with contextlib.suppress(StoreUnavailable):
                await self._flush()
                if time.monotonic() >= checked_s + CHECK_S:
                    checked_s = time.monotonic()
                    await self._check()

    async def _check(self) -> None:
        """Touch the work and the answer.

        Raises:
            _Lost, _Cancelled: the run must stop.
        """
        owner, response_id = self._work.owner, self._reply.id
        work = (await self._store.read(owner, Kind.WORK, [self._work.id])).get(self._work.id)
        found = (await self._store.read(owner, Kind.RESPONSE, [response_id])).get(response_id)
        if work is None or work.version != self.run or found is None:
            raise _Lost
        if msgspec.json.decode(found.head, type=ResponseHead).is_cancelled:
            raise _Cancelled


async def _keep_end(store: Store, work: Work, response: Response) -> None:
    """Store an answer at its end. A process that dies in the middle leaves this to the next one."""
    owner, identity = work.owner, work.head.response_id
    found = (await store.read(owner, Kind.RESPONSE, [identity])).get(identity)
    if found is not None:
        head = msgspec.json.decode(found.head, type=ResponseHead)
        made = made_items(response)
        if found.num_items == head.num_input:
            await store.append(owner, identity, made)
        is_whole = response["status"] in ("completed", "incomplete")
        conversation = head.conversation if is_whole else None
        if conversation is not None and not await store.find_items(owner, [made[-1].id], conversation):
            given = (await store.items_of(owner, [identity]))[identity][: head.num_input]
            await store.append(owner, conversation, [*given, *made])
        ended = replaced(head, response=written(response), is_running=False)
        await store.replace(owner, identity, msgspec.json.encode(ended))
    await store.delete(owner, Kind.WORK, work.id)


class Background:
    """The work that this process does."""

    def __init__(self, app: web.Application, store: Store) -> None:
        self._app, self._store = app, store
        self._is_lasting = outlives_frontend(app[SETTINGS])
        self._running: dict[str, asyncio.Task[None]] = {}  # by the work's id
        self._num_beginning = Counter[str]()  # works that are not stored yet, by owner
        self._claiming = asyncio.create_task(self._claim())

    async def begin(
        self,
        call: Call[ResponsesRequest],
        turn: Turn,
        chat: Call[ChatCompletionRequest],
        made: Sequence[Mapping[str, Any]],
        max_prompt_tokens: int | None,
    ) -> Response:
        """Begin an answer, and return its first state.

        Args:
            made: the first items of the output.
            max_prompt_tokens: see ChatPrompt.

        Raises:
            APIError: the request is refused.
        """
        async with self._room_for_one(turn.owner):
            chat = await with_documents(chat)
            [generation] = await chat_generations(chat, max_prompt_tokens)
            generation = replaced(generation, params=replaced(generation.params, is_stream=True))
            request = call.request
            head = _work_head(request)
            work = Work(turn.owner, head)
            own = replace(chat, request=await _request_of(self._app, head, request))
            async with contextlib.AsyncExitStack() as stack:
                admitted = await stack.enter_async_context(await admit(own, [generation], is_background=True))
                await fetch_images(own, admitted)
                replay = await self._store_begun(call, turn, work, made, admitted.generations[0])
                response = replay.reply.so_far("queued")
                request.update(own.request)  # with the state of the key's limits, for the headers
                request[FACTS].id = work.head.response_id
                own.request[FACTS] = _own_facts(request)
                stack.pop_all()  # the work leaves it
                self._start(work, own.request, partial(self._run, work, own, replay, admitted))
            return response

    @contextlib.asynccontextmanager
    async def _room_for_one(self, owner: str) -> AsyncIterator[None]:
        """Count a work until it is stored.

        Raises:
            RateLimited: the owner has too many.
        """
        self._num_beginning[owner] += 1
        try:
            works = await stored(self._store.page(owner, Kind.WORK, limit=MAX_WORKS, is_newest_first=True))
            if len(works or ()) + self._num_beginning[owner] > MAX_WORKS:
                rule = f"{MAX_WORKS} answers of this key are in progress: wait for one of them, or cancel it"
                raise RateLimited(f"background: {rule}", param="background")
            yield
        finally:
            self._num_beginning[owner] -= 1

    async def _store_begun(
        self,
        call: Call[ResponsesRequest],
        turn: Turn,
        work: Work,
        made: Sequence[Mapping[str, Any]],
        generation: GenerationRequest,
    ) -> Replay:
        """Store an answer that is queued, with the work on it."""
        store, owner, response_id = self._store, work.owner, work.head.response_id
        head = log_head(call.body, call.name, made, time.time())
        replay = await work_on_body(call.request, Replay, response_id, head, self._app[SETTINGS])
        queued, given = Entry(0), turn.given()
        response = msgspec.json.encode(turn.head(replay.reply.so_far("queued"), len(given), is_running=True))
        packed = Item("", pack(generation))
        await stored(store.create(owner, Kind.LOG, log_id(response_id), head, [queued.item()]))
        # Work without its answer ends once it is claimed.
        await stored(store.create(owner, Kind.WORK, work.id, msgspec.msgpack.encode(work.head), [packed]))
        await stored(store.create(owner, Kind.RESPONSE, response_id, response, given))
        return replay

    async def close(self) -> None:
        """Leave all work to other processes."""
        tasks = [self._claiming, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Work, request: web.Request, run: Callable[[], Awaitable[None]]) -> None:
        if (tracer := self._app[OBSERVER].tracer) is not None:
            tracer.begin(request[FACTS], request.headers)
        task = self._running[work.id] = asyncio.create_task(self._serve(request, run))
        task.add_done_callback(lambda _: self._running.pop(work.id))

    async def _claim(self) -> None:
        """Continue the work of processes that have died."""
        while True:
            try:
                for each in [] if is_draining(self._app) else await self._store.claim(Kind.WORK, LEASE_S):
                    if each.id not in self._running:
                        await self._continue_or_fail(each)
            except StoreUnavailable:
                pass
            except Exception:
                logger.exception("work in the background cannot be continued")
            await asyncio.sleep(CLAIM_S)

    async def _continue_or_fail(self, claimed: Claimed) -> None:
        """Continue work, or end an answer that this version of the server cannot continue."""
        try:
            await self._continue(Work(claimed.owner, msgspec.msgpack.decode(claimed.head, type=WorkHead)))
        except StoreUnavailable:
            raise
        except Exception:
            logger.exception("%s cannot be continued", claimed.id)
            identity = "resp_" + claimed.id.removeprefix("work_")
            if found := await self._store.read(claimed.owner, Kind.RESPONSE, [identity]):
                head = msgspec.json.decode(found[identity].head, type=ResponseHead)
                error = {"code": "server_error", "message": "The server cannot go on with this answer"}
                response = orjson.loads(bytes(head.response)) | {"status": "failed", "error": error}
                ended = replaced(head, response=written(response), is_running=False)
                await self._store.replace(claimed.owner, identity, msgspec.json.encode(ended))
            await self._store.delete(claimed.owner, Kind.WORK, claimed.id)

    async def _continue(self, work: Work) -> None:
        """Continue work that another process has begun."""
        store, owner, response_id = self._store, work.owner, work.head.response_id
        found = (await store.read(owner, Kind.RESPONSE, [response_id])).get(response_id)
        log = (await store.read(owner, Kind.LOG, [log_id(response_id)])).get(log_id(response_id))
        kept = (await store.read(owner, Kind.WORK, [work.id])).get(work.id)
        is_running = found is not None and msgspec.json.decode(found.head, type=ResponseHead).is_running
        if log is None or kept is None or not is_running:
            await store.delete(owner, Kind.WORK, work.id)
            return
        logger.info("%s goes on", response_id)
        replay = Replay(response_id, log.head, self._app[SETTINGS])
        request = await _request_of(self._app, work.head)
        call = Call(request, self._app, replay.chat, replay.name, {}, (), Places(replay.body))
        self._start(work, request, partial(self._run_again, work, call, replay, kept.num_bytes))

    async def _serve(self, request: web.Request, work: Callable[[], Awaitable[None]]) -> None:
        """Do work as a request, which is counted, traced and logged at its end."""
        app, facts = self._app, request[FACTS]
        try:
            with contextlib.ExitStack() as counted:
                if not self._is_lasting and (drain := app.get(DRAIN)) is not None:
                    counted.enter_context(drain)
                await work()
        except _Lost:
            facts.error_code = CLIENT_CLOSED
        except asyncio.CancelledError:
            facts.fail(Draining())
            raise
        except StoreUnavailable as exc:
            facts.fail(StoreFailed(str(exc)))
        except Exception as exc:
            facts.fail(exc if isinstance(exc, APIError) else unexpected(exc, facts))
        finally:
            release_memory(request)
            status: int = HTTPStatus.OK if facts.error is None else facts.error.status
            if facts.error_code == CLIENT_CLOSED:
                status = CLIENT_CLOSED_REQUEST
            app[OBSERVER].end_request(request, status)

    async def _run(self, work: Work, call: Call[ChatCompletionRequest], replay: Replay, admitted: Admitted) -> None:
        """Do the work on an answer, or its rest.

        Raises:
            APIError: another process goes on later.
        """
        facts, running = call.request[FACTS], _Running(call, admitted, work, replay, self._store)
        try:
            async with admitted:
                await running.begin()
                await running.generate()
        except _Cancelled:
            facts.error_code = CLIENT_CLOSED
            await running.end(is_cancelled=True)
        except (_Lost, StoreUnavailable):
            raise
        except Exception as exc:
            error = exc if isinstance(exc, APIError) else unexpected(exc, facts)
            is_later = running.run > 1 and isinstance(error, Overloaded | RateLimited)
            if is_later or (self._is_lasting and isinstance(error, Draining)):
                raise error from None
            call.places.blame(error)
            facts.fail(error)
            await running.end(Failure.of(error))
        else:
            await running.end()

    async def _run_again(self, work: Work, call: Call[ChatCompletionRequest], replay: Replay, num_bytes: int) -> None:
        """Continue the work of another process.

        Args:
            num_bytes: of the stored work.

        Raises:
            _Lost: the work was deleted.
            APIError: it cannot go on now, or never.
        """
        try:
            call = await self._admissible(call, work, replay, num_bytes)
            items = (await self._store.items_of(work.owner, [work.id]))[work.id]
            if not items:
                raise _Lost
            try:
                generation = msgspec.msgpack.decode(items[0].value, type=GenerationRequest)
            except msgspec.DecodeError as exc:
                raise EngineFailed("Another version of the server has begun this answer") from exc
            admitted = await admit(call, [generation], is_background=True)
        except APIError as exc:
            is_new = time.time() < replay.created_s + _GONE_S
            if not isinstance(exc, Overloaded | RateLimited) and not (isinstance(exc, ModelNotFound) and is_new):
                await self._fail(work, replay, exc)
            raise
        await self._run(work, call, replay, admitted)

    async def _admissible(
        self, call: Call[ChatCompletionRequest], work: Work, replay: Replay, num_bytes: int
    ) -> Call[ChatCompletionRequest]:
        """Return the call with its caller, its model and its memory.

        Raises:
            APIError: one of them is not there.
        """
        request, facts = call.request, call.request[FACTS]
        if (note_caller := self._app.get(NOTE_CALLER)) is not None:
            note_caller(request, work.owner)
        facts.caller = replace(facts.caller, organization=work.head.organization, project=work.head.project)
        name = await find_model(request, replay.requested)
        if name.model.parameters.fingerprint != replay.name.model.parameters.fingerprint:
            raise EngineFailed("The model has changed since the answer was begun.")
        if num_bytes > LARGE_BYTES:
            await self._app[LARGE_BODIES].reserve(sender_of(request), num_bytes)
            facts.num_reserved_bytes = num_bytes
        return replace(call, name=name)

    async def _fail(self, work: Work, replay: Replay, error: APIError) -> None:
        """End an answer that cannot go on."""
        await LogReader(self._store, work.owner, work.head.response_id).read_into(replay)
        entry = Entry(_LAST_RUN, 1, time_s=time.time(), failure=Failure.of(error))
        replay.events(entry)
        await self._store.append(work.owner, log_id(work.head.response_id), [entry.item()])
        if replay.reply.ended is not None:
            await _keep_end(self._store, work, replay.reply.ended)


BACKGROUND: web.AppKey[Background] = web.AppKey("background")  # missing: nothing is stored


async def background_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Continue work while the application runs, and leave it at its end."""
    if (store := app.get(STORE)) is None:
        yield
        return
    background = app[BACKGROUND] = Background(app, store)
    yield
    await background.close()


def _work_head(request: web.Request) -> WorkHead:
    facts = request[FACTS]
    return WorkHead(
        f"resp_{secrets.token_hex(16)}",
        facts.request_id,
        request.remote or "",
        facts.caller.organization,
        facts.caller.project,
        facts.labels,
    )


def _own_facts(request: web.Request) -> RequestFacts:
    """Return the facts of the work that a request has begun. Its memory is the work's now."""
    facts = request[FACTS]
    own = replace(facts, labels={**facts.labels}, span=None, trace_id="")
    facts.num_reserved_bytes = facts.num_answer_bytes = facts.num_kept_bytes = 0
    facts.is_in_flight = False
    return own


class _NoConnection:
    """The protocol of a request without a connection."""

    ssl_context = peername = sockname = None


async def _request_of(app: web.Application, head: WorkHead, begun_by: web.Request | None = None) -> web.Request:
    """Return a request that stands for work.

    Args:
        begun_by: the client's; None: another process had it.
    """
    headers = CIMultiDictProxy(CIMultiDict[str]()) if begun_by is None else begun_by.headers
    message = RawRequestMessage(
        "POST", _PATH, HttpVersion11, headers, (), True, None, upgrade=False, chunked=False, url=URL(_PATH)
    )
    nothing: Any = None
    request = web.Request(
        message,
        nothing,
        cast(Any, _NoConnection()),
        nothing,
        nothing,
        asyncio.get_running_loop(),
        state={} if begun_by is None else dict(begun_by.items()),
        remote=head.remote,
    )
    match = await app.router.resolve(request)
    match.add_app(app)
    request._match_info = match  # as aiohttp does; it has no public way
    if begun_by is None:
        request[FACTS] = RequestFacts(head.request_id, time.monotonic(), labels=head.labels)
    return request
