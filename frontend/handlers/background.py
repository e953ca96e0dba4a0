"""Answers in the background: their work goes on when the client has left, and in another process when this one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import msgspec
import orjson
from aiohttp import HttpVersion11, web
from aiohttp.http import RawRequestMessage
from msgspec.structs import replace as replaced
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from frontend.errors import (
    APIError,
    Draining,
    EngineFailed,
    ModelNotFound,
    ModelTooLarge,
    Overloaded,
    RateLimited,
    StoreFailed,
)
from frontend.handlers.answer_log import Entry, Failure, Replay, log_body, log_id
from frontend.handlers.answer_run import Cancelled, LoggedGeneration, Lost, Run, Work, WorkHead, work_id
from frontend.handlers.bodies import reserve, work_on_body
from frontend.handlers.call import Call
from frontend.handlers.completions import chat_generations, fetch_images
from frontend.handlers.documents import with_documents
from frontend.handlers.generation import admit
from frontend.handlers.large_answers import release_memory
from frontend.handlers.stored import STORE, stored
from frontend.handlers.turns import ResponseHead, Turn, written
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
    unexpected,
)
from frontend.settings import Settings
from frontend.store.place import outlives_frontend
from frontend.store.types import Change, Claimed, Create, Delete, Kind, Replace, Store, StoreUnavailable
from frontend.telemetry.observer import OBSERVER
from frontend.translate.places import Places
from model_repository.contract.codec import pack
from model_repository.contract.request import GenerationRequest

MAX_WORKS = 64  # of an owner at a time
LEASE_S = 5.0  # after which work that no process touches is continued by another one
CLAIM_S = 2.0
_PATIENCE_S = 600.0  # the longest wait of an answer for a model, Triton, a place or a limit
_PATH = "/v1/responses"

logger = logging.getLogger(__name__)


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
                replay, *changes = await work_on_body(
                    request, _begun, call, turn, work, made, admitted.generations[0], self._app[SETTINGS]
                )
                await stored(self._store.write(work.owner, *changes))
                response = replay.reply.so_far("queued")
                request.update(own.request)  # with the state of the key's limits, for the headers
                request[FACTS].id = work.head.response_id
                own.request[FACTS] = _own_facts(request)
                stack.pop_all()  # the work leaves it
                self._start(work, own.request, partial(self._run, own, work, replay, admitted=admitted))
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
                        await self._continue(each)
            except StoreUnavailable:
                await asyncio.sleep(2 * LEASE_S)  # those who have work touch it first
            except Exception:
                logger.exception("work in the background cannot be continued")
            await asyncio.sleep(CLAIM_S)

    async def _continue(self, claimed: Claimed) -> None:
        """Continue work that another process has begun."""
        try:
            work = Work(claimed.owner, msgspec.msgpack.decode(claimed.head, type=WorkHead))
        except msgspec.DecodeError:
            await self._give_up(claimed.owner, "resp_" + claimed.id.removeprefix("work_"))
            return
        request = await _request_of(self._app, work.head)
        self._start(work, request, partial(self._run_again, work, request))

    async def _give_up(self, owner: str, response_id: str) -> None:
        """End an answer that this version of the server cannot continue."""
        logger.error("%s cannot be continued: another version of the server has begun it", response_id)
        changes: list[Change] = [Delete(Kind.WORK, work_id(response_id)), Delete(Kind.LOG, log_id(response_id))]
        if found := await self._store.read(owner, Kind.RESPONSE, [response_id]):
            head = msgspec.json.decode(found[response_id].head, type=ResponseHead)
            error = {"code": "server_error", "message": "The server cannot go on with this answer"}
            [body] = (await self._store.bodies(owner, [response_id])).values()
            response = orjson.loads(body) | {"status": "failed", "error": error}
            ended = msgspec.json.encode(replaced(head, is_running=False))
            changes.append(Replace(response_id, ended, body=written(response)))
        await self._store.write(owner, *changes)

    async def _serve(self, request: web.Request, work: Callable[[], Awaitable[None]]) -> None:
        """Do work as a request, which is counted, traced and logged at its end."""
        app, facts = self._app, request[FACTS]
        try:
            with contextlib.ExitStack() as counted:
                if not self._is_lasting and (drain := app.get(DRAIN)) is not None:
                    counted.enter_context(drain)
                await work()
        except Lost:
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

    async def _run_again(self, work: Work, request: web.Request) -> None:
        """Do the rest of the work that another process has begun; see `_run`.

        Raises:
            Lost: it was deleted, or has ended.
            Overloaded: there is no memory for it now.
        """
        store, owner, response_id = self._store, work.owner, work.head.response_id
        kept = (await store.read(owner, Kind.WORK, [work.id])).get(work.id)
        found = (await store.read(owner, Kind.RESPONSE, [response_id])).get(response_id)
        log = (await store.read(owner, Kind.LOG, [log_id(response_id)])).get(log_id(response_id))
        is_running = found is not None and msgspec.json.decode(found.head, type=ResponseHead).is_running
        if kept is None or log is None or not is_running:
            await store.delete(owner, Kind.WORK, work.id)
            raise Lost
        with contextlib.suppress(APIError):  # its answer fails below
            self._note_caller(request, work)
        await reserve(request, kept.num_bytes + log.num_bytes)
        bodies = await store.bodies(owner, [log.id])
        try:
            replay = await work_on_body(request, Replay, response_id, bodies[log.id], self._app[SETTINGS])
        except (APIError, ValueError, KeyError):
            await self._give_up(owner, response_id)
            raise Lost from None
        logger.info("%s goes on", response_id)
        call = Call(request, self._app, replay.chat, replay.name, {}, (), Places(replay.body))
        await self._run(call, work, replay, kept.version)

    async def _run(
        self,
        call: Call[ChatCompletionRequest],
        work: Work,
        replay: Replay,
        version: int = 0,
        admitted: Admitted | None = None,
    ) -> None:
        """Do the work on an answer, or its rest.

        Args:
            version: of the stored work.
            admitted: None: another process has begun it.

        Raises:
            Lost: another process goes on with it, or it was deleted.
            APIError: this process or another one goes on later.
            StoreUnavailable: see Store.
        """
        facts, run = call.request[FACTS], Run(self._store, work, replay, version)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if admitted is not None:
                    await stack.enter_async_context(admitted)
                await run.begin()
                if not replay.is_over:
                    if admitted is None:
                        call, admitted = await self._admitted_again(call, work, replay)
                        await stack.enter_async_context(admitted)
                    await LoggedGeneration(call, admitted, run).to_the_end()
        except Cancelled:
            facts.error_code = CLIENT_CLOSED
            await run.end(is_cancelled=True)
        except (Lost, StoreUnavailable):
            raise
        except Exception as exc:
            error = exc if isinstance(exc, APIError) else unexpected(exc, facts)
            if self._may_go_on(error, replay):
                raise error from None
            call.places.blame(error)
            facts.fail(error)
            await run.end(Failure.of(error))
        else:
            await run.end()

    def _may_go_on(self, error: APIError, replay: Replay) -> bool:
        """Whether the answer that an error has stopped may go on later."""
        if isinstance(error, Draining):
            return self._is_lasting
        may_pass = isinstance(error, Overloaded | RateLimited | ModelNotFound)
        return may_pass and not isinstance(error, ModelTooLarge) and time.time() < replay.progress_s + _PATIENCE_S

    async def _admitted_again(
        self, call: Call[ChatCompletionRequest], work: Work, replay: Replay
    ) -> tuple[Call[ChatCompletionRequest], Admitted]:
        """Admit work that another process has begun, and return it with its model.

        Raises:
            Lost: the work was deleted.
            APIError: it cannot go on now, or never.
            StoreUnavailable: see Store.
        """
        self._note_caller(call.request, work)
        name = await find_model(call.request, replay.requested)
        if name.model.parameters.fingerprint != replay.name.model.parameters.fingerprint:
            raise EngineFailed("The model has changed since the answer was begun.")
        bodies = await self._store.bodies(work.owner, [work.id])
        if not bodies:
            raise Lost
        try:
            generation = msgspec.msgpack.decode(bodies[work.id], type=GenerationRequest)
        except msgspec.DecodeError as exc:
            raise EngineFailed("Another version of the server has begun this answer") from exc
        call = replace(call, name=name)
        return call, await admit(call, [generation], is_background=True)

    def _note_caller(self, request: web.Request, work: Work) -> None:
        """Note the caller of work that another process has begun.

        Raises:
            AuthenticationFailed: the key is no longer there.
        """
        facts = request[FACTS]
        if (note_caller := self._app.get(NOTE_CALLER)) is not None:
            note_caller(request, work.owner)
        facts.caller = replace(facts.caller, organization=work.head.organization, project=work.head.project)


BACKGROUND: web.AppKey[Background] = web.AppKey("background")  # missing: nothing is stored


async def background_lifetime(app: web.Application) -> AsyncIterator[None]:
    """Continue work while the application runs, and leave it at its end."""
    if (store := app.get(STORE)) is None:
        yield
        return
    background = app[BACKGROUND] = Background(app, store)
    yield
    await background.close()


def _begun(
    call: Call[ResponsesRequest],
    turn: Turn,
    work: Work,
    made: Sequence[Mapping[str, Any]],
    generation: GenerationRequest,
    settings: Settings,
) -> tuple[Replay, Create, Create, Create]:
    """Return an answer that is queued, with the objects that store it."""
    response_id = work.head.response_id
    log = log_body(call.body, call.name, made, time.time())
    replay, given = Replay(response_id, log, settings), turn.given()
    head = msgspec.json.encode(turn.head(given, is_running=True))
    return (
        replay,
        Create(Kind.RESPONSE, response_id, head, given, written(replay.reply.so_far("queued"))),
        Create(Kind.LOG, log_id(response_id), b"", [Entry(0).item()], log),
        Create(Kind.WORK, work.id, work.packed_head(), body=pack(generation)),
    )


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
