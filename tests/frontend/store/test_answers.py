"""Answers while the place of the store is killed, hangs, or is held by another process."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from model_repository.contract.request import GenerationRequest
from tests.fakes import FakeTriton, Script, chunks
from tests.frontend.bodies import RESPONSE
from tests.frontend.conftest import Serve
from tests.frontend.handlers.test_background import ASKED, TEXT, Paused, ended, events_of, having, until, whole
from tests.frontend.store.conftest import Place

type Client = openai.AsyncOpenAI
type Connect = Callable[[str], Awaitable[Client]]

NUM_CONVERSATIONS = 4
NUM_KILLS = 2


def said(request: GenerationRequest) -> Script:
    """Play an answer."""
    return whole(request) if request.params.is_stream else chunks(TEXT)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.handlers.answer_run.CHECK_S", 0.05)
    monkeypatch.setattr("frontend.store.breaker.PAUSE_S", 0.05)
    monkeypatch.setattr("frontend.store.redis_store._RETRY_S", 0.05)


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(said)


@pytest.fixture
async def connect(serve: Serve, triton: FakeTriton) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connected(store: str) -> Client:
            http = await serve(triton, store=store)
            url = f"{(await http.get('/health/live')).url.origin()}/v1"
            return await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))

        yield connected


def kill(place: Place) -> Callable[[], None]:
    place.stop()
    return place.start


def hang(place: Place) -> Callable[[], None]:
    place.signal(signal.SIGSTOP)
    return lambda: place.signal(signal.SIGCONT)


async def turns_of(client: Client, conversation: str) -> list[tuple[str, str]]:
    """Return the ids of the messages of a conversation, which are whole turns."""
    items: list[Any] = [each async for each in client.conversations.items.list(conversation, order="asc", limit=100)]
    assert [item.role for item in items] == ["user", "assistant"] * (len(items) // 2)
    return [(asked.id, said.id) for asked, said in zip(items[::2], items[1::2], strict=True)]


async def found_again(client: Client, response_id: str) -> Any:
    """Return an answer, or None while its place is not used again."""
    with suppress(openai.InternalServerError):
        return await client.responses.retrieve(response_id)


@pytest.mark.parametrize("fault", [kill, hang])
async def test_answers_arrive_while_the_place_is_away_and_work_ends_when_it_is_back(
    server_place: Place,
    connect: Connect,
    triton: FakeTriton,
    fault: Callable[[Place], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await connect(server_place.url)
    before = await client.responses.create(**RESPONSE)
    conversations = [(await client.conversations.create()).id for _ in range(2)]
    triton.script = working = Paused()
    begun = await client.responses.create(**ASKED, conversation=conversations[0])
    await having(client, begun.id, "One two")
    triton.started.clear()
    triton.script = [may_end := asyncio.Event(), *chunks(TEXT)]
    turn = asyncio.create_task(client.responses.create(**RESPONSE, conversation=conversations[1]))
    await triton.started.wait()
    triton.script = said

    async def streamed() -> Any:
        stream = await client.responses.create(**RESPONSE, stream=True)
        return [event async for event in stream][-1].response

    async def num_open() -> int:
        return triton.num_open

    mend = fault(server_place)
    try:
        working.may_go_on.set()
        may_end.set()
        monkeypatch.setattr("frontend.store.postgres._TIMEOUT_S", 1.0)
        asked = turn, client.responses.create(**RESPONSE), streamed(), client.responses.retrieve(before.id)
        *answers, refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [(each.output_text, each.store) for each in answers] == [(TEXT, False)] * 3
        assert refused.code == "store_unavailable"
        await until(num_open, lambda number: not number)
    finally:
        monkeypatch.setattr("frontend.store.postgres._TIMEOUT_S", 10.0)
        await asyncio.to_thread(mend)
    again = await until(lambda: found_again(client, before.id), lambda found: found is not None)
    assert again.to_dict() == before.to_dict()
    found = await ended(client, begun.id)
    assert (found.status, found.output_text) == ("completed", TEXT)
    assert (await events_of(client, begun.id))[-1]["response"] == found.to_dict()
    assert [said for _, said in await turns_of(client, conversations[0])] == [found.output[0].id]
    assert {said for _, said in await turns_of(client, conversations[1])} <= {answers[0].output[0].id}
    for conversation in conversations:
        assert (await client.responses.create(**RESPONSE, conversation=conversation)).store


async def test_no_turn_is_stored_twice_or_in_half_under_kills(server_place: Place, connect: Connect) -> None:
    client = await connect(server_place.url)
    conversations = {(await client.conversations.create()).id: list[str]() for _ in range(NUM_CONVERSATIONS)}
    lost = list[str | None]()  # of answers that are not stored, and of refusals: their codes
    is_over = False

    async def talk(conversation: str, stored: list[str]) -> None:
        while not is_over:
            try:
                answer: Any = await client.responses.create(**RESPONSE, conversation=conversation)
            except openai.InternalServerError as exc:
                lost.append(exc.code)
                continue
            if answer.store:
                stored.append(answer.output[0].id)
            else:
                lost.append("")

    async def num_stored() -> int:
        return sum(map(len, conversations.values()))

    async def num_lost() -> int:
        return len(lost)

    talks = asyncio.gather(*(talk(*each) for each in conversations.items()))
    try:
        for _ in range(NUM_KILLS):
            before = await num_stored(), await num_lost()
            await until(num_stored, lambda number: number > before[0] + NUM_CONVERSATIONS)  # noqa: B023
            server_place.stop()
            try:
                await until(num_lost, lambda number: number > before[1])  # noqa: B023
            finally:
                await asyncio.to_thread(server_place.start)
    finally:
        is_over = True
        await talks
    assert set(lost) <= {"", "store_unavailable"}
    for conversation, stored in conversations.items():
        turns = await turns_of(client, conversation)
        ids = [identity for turn in turns for identity in turn]
        assert len(set(ids)) == len(ids)
        assert [said for _, said in turns if said in stored] == stored


async def test_answers_arrive_while_another_process_holds_the_file(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.store.sqlite._WAIT_S", 0.1)
    path = tmp_path / "store.db"
    client = await connect(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not (await client.responses.create(**RESPONSE)).store
    other.close()
    assert (await client.responses.create(**RESPONSE)).store
