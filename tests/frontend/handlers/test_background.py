"""Answers in the background, as OpenAI's client uses them."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from frontend.errors import APIError, EngineFailed, InvalidRequest, Overloaded, StageUnhealthy
from frontend.handlers import answer_run, answer_stream, background
from frontend.handlers.background import BACKGROUND
from frontend.handlers.stored import STORE
from frontend.request_context import DRAIN, TRITON
from frontend.store.types import Change, Create, Delete, Kind, StoreUnavailable
from frontend.telemetry.log_lines import REQUEST_LOGGER
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.contract.request import ChatPrompt, GenerationRequest
from tests.fakes import USAGE, FakeTriton, chunks, served_model
from tests.frontend.bodies import RESPONSE
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile
from tests.waiting import DEADLINE_S

type Client = openai.AsyncOpenAI
type Connect = Callable[..., Awaitable[Client]]

WORDS = ("One", " two", " three", " four", " five")
TEXT = "".join(WORDS)
ASKED: dict[str, Any] = RESPONSE | {"background": True}


def chunk(number: int) -> GenerationChunk:
    """Return the chunk with a word, whose token id is its number."""
    is_last = number == len(WORDS) - 1
    return GenerationChunk(
        text=WORDS[number],
        packed_token_ids=array("i", [number]).tobytes(),
        finish_reason=FinishReason.STOP if is_last else None,
        usage=USAGE if is_last else None,
    )


def whole(request: GenerationRequest) -> list[GenerationChunk]:
    """Play the rest of the answer, behind the tokens that a request has."""
    return [chunk(number) for number in range(len(request.params.resume_token_ids or ()), len(WORDS))]


class Paused:
    """Plays some words, and the others once it may."""

    def __init__(self, num_words: int = 2, *, end: APIError | None = None) -> None:
        self.may_go_on = asyncio.Event()
        self._num_words, self._end = num_words, end

    def __call__(self, request: GenerationRequest) -> list[Any]:
        played = whole(request)
        rest = played[self._num_words :] if self._end is None else [self._end]
        return [*played[: self._num_words], self.may_go_on, *rest]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (background, "LEASE_S", 0.3),
        (background, "CLAIM_S", 0.02),
        (answer_run, "CHECK_S", 0.05),
        (answer_run, "FLUSH_S", 0.01),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(answer_stream, "POLL_S", 0.01)


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(whole)


@pytest.fixture
async def connect(serve: Serve, triton: FakeTriton) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connected(apps: list[web.Application] | None = None, **settings: Any) -> Client:
            http = await serve(settings.pop("triton", triton), apps, **settings)
            url = f"{(await http.get('/health/live')).url.origin()}/v1"
            client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
            return await stack.enter_async_context(client)

        yield connected


async def until[Value](get: Callable[[], Awaitable[Value]], is_wanted: Callable[[Value], bool]) -> Value:
    async with asyncio.timeout(DEADLINE_S):
        while not is_wanted(value := await get()):  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.01)
    return value


async def ended(client: Client, response_id: str) -> Any:
    """Return an answer at its end."""
    return await until(
        lambda: client.responses.retrieve(response_id), lambda found: found.status not in ("queued", "in_progress")
    )


async def having(client: Client, response_id: str, text: str) -> Any:
    """Return an answer that has this text."""
    return await until(lambda: client.responses.retrieve(response_id), lambda found: found.output_text == text)


async def logged(caplog: pytest.LogCaptureFixture, part: str, number: int = 1) -> list[str]:
    """Return as many lines of the log with a part."""

    async def lines() -> list[str]:
        return [line for line in caplog.messages if part in line]

    return await until(lines, lambda found: len(found) >= number)


async def events_of(client: Client, response_id: str, **after: Any) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        stream: Any = await client.responses.retrieve(response_id, stream=True, **after)
        return [event.to_dict() async for event in stream]


async def test_an_answer_is_queued_at_once_and_found_at_its_end(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = paused = Paused()
    begun = await client.responses.create(**ASKED)
    assert (begun.status, begun.background, begun.store, begun.output) == ("queued", True, True, [])
    running = await having(client, begun.id, "One two")
    assert running.status == "in_progress"
    paused.may_go_on.set()
    found = await ended(client, begun.id)
    assert (found.status, found.output_text, found.usage.output_tokens) == ("completed", TEXT, USAGE.num_output_tokens)
    assert found.completed_at is not None
    [given] = (await client.responses.input_items.list(begun.id)).data
    assert given.to_dict()["content"] == [{"type": "input_text", "text": RESPONSE["input"]}]
    await client.responses.create(**RESPONSE, previous_response_id=begun.id)
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message["content"] for message in prompt.messages] == [RESPONSE["input"], TEXT, RESPONSE["input"]]


async def test_a_conversation_gets_the_turn_once(connect: Connect) -> None:
    client = await connect()
    conversation = await client.conversations.create()
    begun = await client.responses.create(**ASKED, conversation=conversation.id)
    found = await ended(client, begun.id)
    items = (await client.conversations.items.list(conversation.id, order="asc")).data
    assert [item.to_dict()["role"] for item in items] == ["user", "assistant"]
    assert items[1].id == found.output[0].id


async def test_an_answer_outlives_its_conversation(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = paused = Paused()
    conversation = await client.conversations.create()
    begun = await client.responses.create(**ASKED, conversation=conversation.id)
    await having(client, begun.id, "One two")
    await client.conversations.delete(conversation.id)
    paused.may_go_on.set()
    assert (await ended(client, begun.id)).status == "completed"
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)


async def test_an_answer_and_its_work_are_stored_together(
    connect: Connect, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work was stored before the answer: a process that claimed it in between deleted it."""
    apps: list[web.Application] = []
    client = await connect(apps)
    store, writes = apps[0][STORE], list[Any]()
    write = store.write

    async def noted(owner: str, *changes: Change) -> bool:
        writes.append([type(change) for change in changes])
        return await write(owner, *changes)

    monkeypatch.setattr(store, "write", noted)
    triton.script = Paused()
    await client.responses.create(**ASKED)
    assert writes[0] == [Create] * 3


async def test_the_events_behind_any_one_are_those_of_the_stream(connect: Connect) -> None:
    client = await connect()
    stream: Any = await client.responses.create(**ASKED, stream=True)
    events = [event.to_dict() async for event in stream]
    types = [event["type"] for event in events]
    assert types[:4] == [f"response.{name}" for name in ("created", "queued", "in_progress", "output_item.added")]
    assert types[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response_id = events[0]["response"]["id"]
    assert events[-1]["response"] == (await ended(client, response_id)).to_dict()
    for after in range(len(events) + 1):
        assert await events_of(client, response_id, starting_after=after) == events[after + 1 :]
    assert await events_of(client, response_id) == events


async def test_a_stream_goes_on_while_the_answer_is_made(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = paused = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    stream: Any = await client.responses.retrieve(begun.id, stream=True, starting_after=4)
    seen = []
    async for event in stream:
        seen.append(event.to_dict())
        if event.type == "response.output_text.delta" and event.delta.endswith("two"):
            paused.may_go_on.set()
    assert seen[0]["sequence_number"] == 5
    assert seen == (await events_of(client, begun.id))[5:]


async def test_a_silent_stream_has_comments(connect: Connect, triton: FakeTriton) -> None:
    client = await connect(stream_keepalive_s=0.05)
    triton.script = paused = Paused(0)
    begun = await client.responses.create(**ASKED)
    async with aiohttp.ClientSession() as http:
        stream = await http.get(f"{client.base_url}responses/{begun.id}?stream=true")
        async with asyncio.timeout(10):
            await stream.content.readuntil(b": keepalive\n\n")
        paused.may_go_on.set()
        assert b"response.completed" in await stream.read()


async def test_a_client_that_leaves_does_not_stop_its_answer(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = paused = Paused()
    stream: Any = await client.responses.create(**ASKED, stream=True)
    begun = await anext(aiter(stream))
    await triton.started.wait()
    await stream.close()
    paused.may_go_on.set()
    assert (await ended(client, begun.response.id)).output_text == TEXT


async def test_a_cancelled_answer_keeps_its_text(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    cancelled = await client.responses.cancel(begun.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "One two")
    await asyncio.wait_for(triton.closed.wait(), 10)
    found = await ended(client, begun.id)
    assert found.to_dict() == (await client.responses.cancel(begun.id)).to_dict() == cancelled.to_dict()
    assert (await events_of(client, begun.id))[-1]["type"] == "response.cancelled"


async def test_a_complete_answer_is_not_cancelled(connect: Connect) -> None:
    client = await connect()
    begun = await client.responses.create(**ASKED)
    found = await ended(client, begun.id)
    assert (await client.responses.cancel(begun.id)).to_dict() == found.to_dict()


async def test_a_deleted_answer_stops(connect: Connect, triton: FakeTriton) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    await client.responses.delete(begun.id)
    await asyncio.wait_for(triton.closed.wait(), 10)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(begun.id)
    assert await apps[0][STORE].usage() == {}


async def test_an_answer_that_fails_says_why(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = paused = Paused(end=InvalidRequest("input: no", param="input"))
    begun = await client.responses.create(**ASKED)
    paused.may_go_on.set()
    found = await ended(client, begun.id)
    assert (found.status, found.output_text, found.error.message) == ("failed", "One two", "input: no")
    events = await events_of(client, begun.id)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"] == found.to_dict()


async def test_an_answer_that_loses_its_place_goes_on_later(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    full: list[Any] = [chunk(0), chunk(1), Overloaded("full")]
    triton.script = lambda request: full if len(triton.requests) == 1 else whole(request)
    begun = await client.responses.create(**ASKED)
    found = await ended(client, begun.id)
    assert (found.status, found.output_text) == ("completed", TEXT)
    assert len(triton.requests) == 2


async def test_the_work_has_a_log_line_of_its_own(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = await connect()
    with caplog.at_level("INFO", REQUEST_LOGGER):
        begun = await client.responses.create(**ASKED)
        await ended(client, begun.id)
        lines = await logged(caplog, f" id={begun.id}", 2)
    assert [line.partition(" status=")[2].partition(" ttft")[0] for line in lines] == [
        "200 error=- input_tokens=0 output_tokens=0",
        f"200 error=- input_tokens={USAGE.num_input_tokens} output_tokens={USAGE.num_output_tokens}",
    ]
    async with aiohttp.ClientSession() as http:
        metrics = await (await http.get(f"{client.base_url}".removesuffix("v1/") + "metrics")).text()
    assert f'conch_requests_in_flight{{model="{RESPONSE["model"]}"}} 0.0' in metrics


async def leave(app: web.Application) -> None:
    """Have a frontend leave its work."""
    await app[BACKGROUND].close()


async def test_another_frontend_goes_on_behind_the_tokens(connect: Connect, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    first, apps = FakeTriton(Paused()), list[web.Application]()
    client = await connect(apps, triton=first, store=store)
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    before = await asyncio.wait_for(first_events(client, begun.id, "two"), 10)
    await leave(apps[0])
    second = FakeTriton(whole)
    client = await connect(triton=second, store=store)
    found = await ended(client, begun.id)
    assert (found.status, found.output_text) == ("completed", TEXT)
    assert [request.params.resume_token_ids for request in second.requests] == [(0, 1)]
    assert second.requests[0].params.cancel_key != first.requests[0].params.cancel_key
    events = await events_of(client, begun.id)
    assert events[: len(before)] == before
    assert events[-1]["response"] == found.to_dict()


async def first_events(client: Client, response_id: str, last: str) -> list[Any]:
    """Return the events up to the text that ends with these characters."""
    seen = []
    async for event in await client.responses.retrieve(response_id, stream=True):
        seen.append(event.to_dict())
        if event.type == "response.output_text.delta" and event.delta.endswith(last):
            return seen
    raise AssertionError(seen)


async def test_a_resumed_answer_survives_a_death_of_its_engine(connect: Connect, tmp_path: Path) -> None:
    """The tokens of the first process were not sent again after the death of the engine in the second one."""
    store = str(tmp_path / "store.db")
    apps: list[web.Application] = []
    client = await connect(apps, triton=FakeTriton(Paused()), store=store)
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    await leave(apps[0])
    dying: list[Any] = [chunk(2), EngineFailed()]
    second = FakeTriton(lambda request: dying if len(second.requests) == 1 else whole(request))
    client = await connect(triton=second, store=store)
    assert (await ended(client, begun.id)).output_text == TEXT
    assert [request.params.resume_token_ids for request in second.requests] == [(0, 1), (0, 1, 2)]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_model_that_is_not_there_yet_is_waited_for(
    connect: Connect,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_cancelled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs without a place were counted as well, and a stop had no effect."""
    monkeypatch.setattr(answer_run, "_MAX_RUNS", 1)
    store = str(tmp_path / "store.db")
    apps: list[web.Application] = []
    client = await connect(apps, triton=FakeTriton(Paused()), store=store)
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    await leave(apps[0])
    second = FakeTriton(whole)
    second.snapshot_error = StageUnhealthy("demo")
    with caplog.at_level("INFO", REQUEST_LOGGER):
        client = await connect(triton=second, store=store)
        await logged(caplog, f"request_id={begun._request_id} ", 3)
    assert (await client.responses.retrieve(begun.id)).status == "in_progress"
    if is_cancelled:
        await client.responses.cancel(begun.id)
        assert (await events_of(client, begun.id))[-1]["type"] == "response.cancelled"
    second.snapshot_error = None
    found = await ended(client, begun.id)
    assert (found.status, found.output_text) == (("cancelled", "One two") if is_cancelled else ("completed", TEXT))


async def test_an_answer_whose_work_a_bound_has_deleted_is_gone_as_a_whole(
    connect: Connect, triton: FakeTriton
) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    store = apps[0][STORE]
    [owner] = await store.usage()
    await store.delete(owner, Kind.WORK, answer_run.work_id(begun.id))
    await asyncio.wait_for(triton.closed.wait(), 10)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(begun.id)
    assert await store.usage() == {}


async def test_an_end_that_is_stored_counts_though_its_reply_is_lost(
    connect: Connect, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = paused = Paused()
    store = apps[0][STORE]
    with caplog.at_level("INFO", REQUEST_LOGGER):
        begun = await client.responses.create(**ASKED)
        await having(client, begun.id, "One two")
        write = store.write

        async def unconfirmed(owner: str, *changes: Change) -> bool:
            done = await write(owner, *changes)
            if isinstance(changes[0], Delete):
                raise StoreUnavailable("gone")
            return done

        monkeypatch.setattr(store, "write", unconfirmed)
        paused.may_go_on.set()
        assert (await ended(client, begun.id)).output_text == TEXT
        lines = await logged(caplog, f" id={begun.id}", 2)
    assert " status=200 " in lines[-1]


async def test_an_answer_of_another_version_fails_and_others_go_on(connect: Connect, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    apps: list[web.Application] = []
    client = await connect(apps, triton=FakeTriton(Paused()), store=store)
    strange, usual = [await client.responses.create(**ASKED) for _ in range(2)]
    for each in (strange, usual):
        await having(client, each.id, "One two")
    await leave(apps[0])
    [owner] = await apps[0][STORE].usage()
    await apps[0][STORE].replace(owner, answer_run.work_id(strange.id), b"strange")
    client = await connect(triton=FakeTriton(whole), store=store)
    found = await ended(client, strange.id)
    assert (found.status, found.error.message) == ("failed", "The server cannot go on with this answer")
    assert (await ended(client, usual.id)).output_text == TEXT
    with pytest.raises(openai.NotFoundError):
        await events_of(client, strange.id)


async def test_no_other_model_continues_an_answer(connect: Connect, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    apps: list[web.Application] = []
    client = await connect(apps, triton=FakeTriton(Paused()), store=store)
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    await leave(apps[0])
    client = await connect(triton=FakeTriton(whole, [served_model(fingerprint="fp_other")]), store=store)
    found = await ended(client, begun.id)
    assert (found.status, found.output_text) == ("failed", "One two")
    assert "model has changed" in found.error.message


async def test_work_that_another_process_took_adds_nothing(connect: Connect, tmp_path: Path) -> None:
    """A process that was only slow wrote its words between those of the next one."""
    store = str(tmp_path / "store.db")
    apps: list[web.Application] = []
    slow = Paused(3)
    first = FakeTriton(slow)
    client = await connect(apps, triton=first, store=store)
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two three")
    [claimed] = await apps[0][STORE].claim(Kind.WORK, 0)
    taken = Paused(1)
    second_apps: list[web.Application] = []
    second = FakeTriton(taken)
    client = await connect(second_apps, triton=second, store=store)
    await second_apps[0][BACKGROUND]._continue(claimed)
    await second.started.wait()
    await asyncio.wait_for(first.closed.wait(), 10)
    slow.may_go_on.set()
    taken.may_go_on.set()
    assert (await ended(client, begun.id)).output_text == TEXT


async def test_a_store_that_fails_for_a_time_loses_nothing(
    connect: Connect, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = paused = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    store, failed = apps[0][STORE], asyncio.Event()
    append = store.append

    async def unconfirmed(*arguments: Any) -> bool:
        await append(*arguments)
        failed.set()
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "append", unconfirmed)
    paused.may_go_on.set()
    await asyncio.wait_for(failed.wait(), 10)
    monkeypatch.setattr(store, "append", append)
    assert (await ended(client, begun.id)).output_text == TEXT


async def test_a_stream_ends_when_the_store_fails_and_the_rest_is_read_later(
    connect: Connect, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = paused = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    stream: Any = await client.responses.retrieve(begun.id, stream=True)
    seen = [(await anext(aiter(stream))).to_dict()]

    async def failing(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(apps[0][STORE], "items", failing)
        seen += [event.to_dict() async for event in stream]
    paused.may_go_on.set()
    rest = await events_of(client, begun.id, starting_after=seen[-1]["sequence_number"])
    assert rest[-1]["type"] == "response.completed"
    assert seen + rest == await events_of(client, begun.id)


async def test_a_drain_waits_for_work_that_nobody_else_can_do(connect: Connect, triton: FakeTriton) -> None:
    apps: list[web.Application] = []
    client = await connect(apps)
    triton.script = paused = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    drained = asyncio.create_task(apps[0][DRAIN].finish(10, asyncio.Event(), apps[0][TRITON].end_all))
    stream_url = f"{client.base_url}responses/{begun.id}?stream=true"
    async with aiohttp.ClientSession() as http:
        assert (await http.get(stream_url)).status == 503
    assert not drained.done()
    paused.may_go_on.set()
    await asyncio.wait_for(drained, 10)


async def test_a_stream_ends_with_a_drain_if_another_frontend_has_the_rest(
    connect: Connect, triton: FakeTriton, tmp_path: Path
) -> None:
    apps: list[web.Application] = []
    client = await connect(apps, store=str(tmp_path / "store.db"))
    triton.script = Paused()
    begun = await client.responses.create(**ASKED)
    await having(client, begun.id, "One two")
    stream: Any = await client.responses.retrieve(begun.id, stream=True)
    seen = [(await anext(aiter(stream))).type]
    draining = asyncio.create_task(apps[0][DRAIN].finish(10, asyncio.Event(), apps[0][TRITON].end_all))
    seen += [event.type async for event in stream]
    assert seen[0] == "response.created"
    assert seen[-1] == "response.output_text.delta"
    await asyncio.wait_for(draining, 10)


@pytest.mark.parametrize(
    ("fields", "settings", "param"),
    [({"store": False}, {}, "background"), ({}, {"store": "none"}, "background")],
)
async def test_background_needs_a_store(
    connect: Connect, fields: dict[str, Any], settings: dict[str, Any], param: str
) -> None:
    client = await connect(**settings)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(**ASKED, **fields)
    assert refused.value.param == param


async def test_a_summary_in_the_background_is_refused_by_name(connect: Connect) -> None:
    client = await connect()
    with pytest.raises(openai.BadRequestError, match="compaction_trigger") as refused:
        await client.responses.create(**ASKED | {"input": [{"type": "compaction_trigger"}]})
    assert refused.value.param == "background"


async def test_an_answer_in_the_foreground_is_neither_cancelled_nor_read_again(connect: Connect) -> None:
    client = await connect()
    answer = await client.responses.create(**RESPONSE)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(answer.id)
    with pytest.raises(openai.BadRequestError, match="background") as refused:
        await client.responses.retrieve(answer.id, stream=True)
    assert refused.value.param == "stream"


@pytest.mark.parametrize("query", ["stream=1", "stream=true&starting_after=-1", "starting_after=3"])
async def test_a_wrong_query_is_refused_by_name(connect: Connect, query: str) -> None:
    client = await connect()
    answer = await client.responses.create(**ASKED)
    async with aiohttp.ClientSession() as http:
        refused = await http.get(f"{client.base_url}responses/{answer.id}?{query}")
        assert refused.status == 400
        assert (await refused.json())["error"]["param"] in query


async def test_no_turn_follows_an_answer_that_is_not_complete(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = Paused()
    begun = await client.responses.create(**ASKED)
    with pytest.raises(openai.BadRequestError, match="not complete"):
        await client.responses.create(**RESPONSE, previous_response_id=begun.id)


async def test_a_key_has_a_bounded_number_of_works(
    connect: Connect, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_WORKS", 2)
    client = await connect()
    triton.script = paused = Paused()
    begun = [await client.responses.create(**ASKED) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="2 answers"):
        await client.responses.create(**ASKED)
    paused.may_go_on.set()
    for each in begun:
        await ended(client, each.id)
    await client.responses.create(**ASKED)


async def test_summaries_come_first(connect: Connect, triton: FakeTriton) -> None:
    client = await connect()
    triton.script = lambda request: whole(request) if request.params.is_stream else chunks("The summary.")
    asked: Any = ASKED | {"context_management": [{"type": "compaction", "compact_threshold": 1}]}
    begun = await client.responses.create(**asked)
    found = await ended(client, begun.id)
    assert [item.type for item in found.output] == ["compaction", "message"]
    events = await events_of(client, begun.id)
    assert [event["type"] for event in events[2:5]] == [
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert events[-1]["response"] == found.to_dict()


async def test_the_answer_waits_for_its_place_and_the_client_does_not(connect: Connect, triton: FakeTriton) -> None:
    client = await connect(max_in_flight=1)
    triton.script = paused = Paused()
    first, second = [await client.responses.create(**ASKED) for _ in range(2)]
    await having(client, first.id, "One two")
    assert (await client.responses.retrieve(second.id)).status == "queued"
    assert len(triton.requests) == 1
    paused.may_go_on.set()
    for each in (first, second):
        assert (await ended(client, each.id)).output_text == TEXT


async def test_the_limits_of_the_key_count_at_once(connect: Connect) -> None:
    client = await connect(requests_per_minute=1)
    begun = await client.responses.with_raw_response.create(**ASKED)
    assert begun.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(**ASKED)
    await ended(client, begun.parse().id)


async def test_no_other_key_finds_an_answer(connect: Connect, triton: FakeTriton, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    keys.add("alice")
    keys.add("bob")
    anybody = await connect(key_file=str(keys.path))
    alice, bob = (anybody.with_options(api_key=keys.texts[name]) for name in ("alice", "bob"))
    triton.script = Paused()
    begun = await alice.responses.create(**ASKED)
    await having(alice, begun.id, "One two")
    for asked in (
        bob.responses.retrieve(begun.id),
        bob.responses.retrieve(begun.id, stream=True),
        bob.responses.cancel(begun.id),
        bob.responses.delete(begun.id),
        bob.responses.input_items.list(begun.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await asked
    assert (await alice.responses.retrieve(begun.id)).status == "in_progress"


@pytest.mark.parametrize("is_removed", [False, True])
async def test_work_goes_on_with_its_key_alone(connect: Connect, tmp_path: Path, is_removed: bool) -> None:
    keys, store = KeyFile(tmp_path / "keys.json"), str(tmp_path / "store.db")
    keys.add("alice", owner="a" * 32)
    apps: list[web.Application] = []
    anybody = await connect(apps, triton=FakeTriton(Paused()), store=store, key_file=str(keys.path))
    begun = await anybody.with_options(api_key=keys.texts["alice"]).responses.create(**ASKED)
    await having(anybody.with_options(api_key=keys.texts["alice"]), begun.id, "One two")
    await leave(apps[0])
    keys.remove("alice")
    keys.add("alice", owner="b" * 32 if is_removed else "a" * 32)
    second, apps = FakeTriton(whole), []
    await connect(apps, triton=second, store=store, key_file=str(keys.path))

    async def head() -> Any:
        return json.loads((await apps[0][STORE].bodies("a" * 32, [begun.id]))[begun.id])

    found = await until(head, lambda response: response["status"] != "queued")
    assert found["status"] == ("failed" if is_removed else "completed")
    assert len(second.requests) == (0 if is_removed else 1)
