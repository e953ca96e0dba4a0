"""Chats that are stored, as OpenAI's client uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from aiohttp import web

from frontend.handlers.stored import STORE
from frontend.store.sql import SqlStore
from frontend.store.types import Kind, Stored
from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import CHAT, WEATHER
from tests.frontend.conftest import Serve

type Client = openai.AsyncOpenAI

TOOLS: Any = [WEATHER]
CALL = 'Let me see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(chunks("Hello.", "Hel", "lo."))


@pytest.fixture
async def client(serve: Serve, triton: FakeTriton) -> AsyncIterator[Client]:
    http = await serve(triton)
    url = f"{(await http.get('/health/live')).url.origin()}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("text", ["Hello.", CALL])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_stored_chat_is_the_answer_without_a_stream(
    client: Client, triton: FakeTriton, is_stream: bool, text: str, number: int
) -> None:
    triton.script = chunks(text)
    answer: Any = await client.chat.completions.create(
        **CHAT, store=True, n=number, tools=TOOLS, stream=is_stream, metadata={"a": "b"}
    )
    events = [event async for event in answer] if is_stream else []
    found = await client.chat.completions.retrieve(events[0].id if is_stream else answer.id)
    assert found.metadata == {"a": "b"}
    if not is_stream:
        assert found.to_dict() == answer.to_dict() | {"metadata": {"a": "b"}}
        return
    for choice in found.choices:
        deltas = [each for event in events for each in event.choices if each.index == choice.index]
        assert "".join(each.delta.content or "" for each in deltas) == (choice.message.content or "")
        ids = {call.id for each in deltas for call in each.delta.tool_calls or () if call.id}
        assert ids == {call.id for call in choice.message.tool_calls or ()}
        assert deltas[-1].finish_reason == choice.finish_reason


async def test_its_messages_are_those_of_the_request(client: Client) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = await client.chat.completions.create(model=CHAT["model"], messages=messages, store=True)
    listed: list[Any] = [each async for each in client.chat.completions.messages.list(answer.id, limit=1)]
    assert [(each.role, each.id) for each in listed] == [("system", f"{answer.id}-0"), ("user", f"{answer.id}-1")]
    assert [each.content for each in listed] == ["Be brief.", "hi"]
    assert [each.to_dict()["content_parts"] for each in listed] == [None, parts]


async def test_chats_are_listed_by_model_and_metadata(client: Client) -> None:
    ids = [
        (await client.chat.completions.create(**CHAT, store=True, metadata={"run": f"{number % 2}"})).id
        for number in range(5)
    ]
    await client.chat.completions.create(**CHAT)
    listed = [each.id async for each in client.chat.completions.list(limit=2)]
    assert listed == ids
    newest = await client.chat.completions.list(order="desc", limit=2, metadata={"run": "0"}, model=CHAT["model"])
    assert ([each.id for each in newest.data], newest.has_next_page()) == ([ids[4], ids[2]], True)
    assert not (await client.chat.completions.list(model="other")).data


async def test_metadata_are_changed_and_a_chat_is_deleted(client: Client) -> None:
    answer = await client.chat.completions.create(**CHAT, store=True)
    changed = await client.chat.completions.update(answer.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    await client.chat.completions.delete(answer.id)
    for call in (client.chat.completions.retrieve, client.chat.completions.delete):
        with pytest.raises(openai.NotFoundError):
            await call(answer.id)


async def test_a_page_of_large_chats_ends_early(serve: Serve, triton: FakeTriton) -> None:
    http = await serve(triton, max_body_bytes=4096)
    triton.script = chunks("a" * 1000)
    ids = [
        (await (await http.post("/v1/chat/completions", json=CHAT | {"store": True})).json())["id"] for _ in range(3)
    ]
    page = await (await http.get("/v1/chat/completions")).json()
    assert ([each["id"] for each in page["data"]], page["has_more"], page["last_id"]) == (ids[:2], True, ids[1])
    page = await (await http.get(f"/v1/chat/completions?after={ids[1]}")).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[2:], False)


async def test_a_search_goes_on_behind_chats_that_are_deleted(
    serve: Serve, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was 404 for an `after` that the client had not sent."""
    monkeypatch.setattr("frontend.handlers.stored_chats._SCANNED", 3)
    apps: list[web.Application] = []
    http = await serve(triton, apps)
    ids = [
        (await (await http.post("/v1/chat/completions", json=CHAT | {"store": True})).json())["id"] for _ in range(5)
    ]
    store, page = apps[0][STORE], SqlStore.page

    async def deleting(self: SqlStore, owner: str, kind: Kind, **asked: Any) -> list[Stored] | None:
        found = await page(self, owner, kind, **asked)
        if not asked["after"]:
            for identity in ids[1:3]:
                await store.delete(owner, kind, identity)
        return found

    monkeypatch.setattr(SqlStore, "page", deleting)
    listed = await (await http.get("/v1/chat/completions")).json()
    assert [each["id"] for each in listed["data"]] == [ids[0], *ids[3:]]


async def test_metadata_that_are_read_with_many_chats_are_bounded(client: Client) -> None:
    metadata = {"a": "b" * 70_000}
    with pytest.raises(openai.BadRequestError, match="metadata: has 70,008 bytes") as refused:
        await client.chat.completions.create(**CHAT, store=True, metadata=metadata)
    assert refused.value.param == "metadata"
    await client.chat.completions.create(**CHAT, metadata=metadata)


async def test_an_error_of_its_messages_has_the_form_of_openai(client: Client) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.messages.list("chatcmpl-1")
    assert missing.value.code == "not_found"
