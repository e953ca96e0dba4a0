"""Answers and conversations that are stored, as OpenAI's client uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from aiohttp import web

from frontend.handlers import shared_memory
from frontend.handlers.bodies import LARGE_BODIES
from frontend.handlers.stored import STORE
from frontend.store import sqlite
from frontend.store.types import StoreUnavailable
from model_repository.contract.request import ChatPrompt
from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import CHAT, RESPONSE, WEATHER
from tests.frontend.conftest import Serve

type Client = openai.AsyncOpenAI

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
FUNCTION: Any = WEATHER["function"]
TOOLS: Any = [{"type": "function", **FUNCTION}]
HI = {"role": "user", "content": "hi"}


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(chunks("Hello."))


@pytest.fixture
def connect(serve: Serve, triton: FakeTriton) -> Callable[..., Awaitable[Client]]:
    async def connected(**settings: Any) -> Client:
        http = await serve(triton, **settings)
        url = f"{(await http.get('/health/live')).url.origin()}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    return connected


@pytest.fixture
async def client(connect: Callable[..., Awaitable[Client]]) -> AsyncIterator[Client]:
    async with await connect() as client:
        yield client


def prompt_of(triton: FakeTriton) -> list[tuple[str, Any]]:
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_follows_the_stored_ones(client: Client, triton: FakeTriton, is_stream: bool) -> None:
    first = await client.responses.create(**RESPONSE, instructions="Be brief.")
    answer: Any = await client.responses.create(
        model=RESPONSE["model"], input="more", previous_response_id=first.id, stream=is_stream
    )
    second = [event async for event in answer][-1].response if is_stream else answer
    assert prompt_of(triton) == [("user", RESPONSE["input"]), ("assistant", "Hello."), ("user", "more")]
    assert (second.store, second.previous_response_id) == (True, first.id)
    found = await client.responses.retrieve(second.id)
    assert found.to_dict() == second.to_dict()
    await client.responses.create(model=RESPONSE["model"], input="last", previous_response_id=second.id)
    assert len(prompt_of(triton)) == 5


async def test_two_turns_may_follow_the_same_one(client: Client, triton: FakeTriton) -> None:
    first = await client.responses.create(**RESPONSE)
    for text in ("left", "right"):
        await client.responses.create(model=RESPONSE["model"], input=text, previous_response_id=first.id)
        assert prompt_of(triton)[2:] == [("user", text)]


async def test_a_chain_is_longer_than_the_ids_in_a_head(client: Client, triton: FakeTriton) -> None:
    last: Any = None
    for number in range(140):
        last = await client.responses.create(
            model=RESPONSE["model"], input=f"{number}", previous_response_id=last and last.id
        )
    assert [content for role, content in prompt_of(triton) if role == "user"] == [f"{each}" for each in range(140)]


async def test_a_call_and_its_result_are_in_different_turns(client: Client, triton: FakeTriton) -> None:
    triton.script = chunks(CALL)
    first = await client.responses.create(**RESPONSE, tools=TOOLS)
    [call] = first.output
    assert call.type == "function_call"
    triton.script = chunks("Hello.")
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    await client.responses.create(model=RESPONSE["model"], input=output, previous_response_id=first.id, tools=TOOLS)
    assert prompt_of(triton)[-1] == ("tool", "rain")


async def test_a_reference_stands_for_its_item(client: Client, triton: FakeTriton) -> None:
    """The AI SDK sends these by default."""
    first = await client.responses.create(**RESPONSE)
    items: Any = [HI, {"type": "item_reference", "id": first.output[0].id}, HI]
    await client.responses.create(model=RESPONSE["model"], input=items)
    assert prompt_of(triton) == [("user", "hi"), ("assistant", "Hello."), ("user", "hi")]
    items[1]["id"] = "msg_1"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=RESPONSE["model"], input=items)
    assert refused.value.param == "input[1].id"
    items[1]["id"] = "rs_1"  # thinking: the conversation goes on without it
    await client.responses.create(model=RESPONSE["model"], input=items)


async def test_what_is_not_to_be_stored_is_not_found(client: Client) -> None:
    answer = await client.responses.create(**RESPONSE, store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_a_deleted_answer_leaves_no_half_of_a_conversation(client: Client) -> None:
    first = await client.responses.create(**RESPONSE)
    second = await client.responses.create(model=RESPONSE["model"], input="a", previous_response_id=first.id)
    await client.responses.delete(first.id)
    for identity in (first.id, second.id):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.create(model=RESPONSE["model"], input="b", previous_response_id=identity)
        assert missing.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(first.id)


async def test_the_input_is_listed_in_pages(client: Client) -> None:
    texts = [f"{number}" for number in range(5)]
    answer = await client.responses.create(
        model=RESPONSE["model"], input=[{"role": "user", "content": text} for text in texts]
    )
    listed: list[Any] = [item async for item in client.responses.input_items.list(answer.id, limit=2, order="asc")]
    assert [(item.content[0].text, item.status) for item in listed] == [(text, "completed") for text in texts]
    newest: Any = await client.responses.input_items.list(answer.id)
    assert [item.id for item in newest.data] == [item.id for item in listed[::-1]]
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(answer.id, after="msg_1")


async def test_a_conversation_may_begin_without_items(client: Client) -> None:
    conversation = await client.conversations.create(items=[])
    assert not (await client.conversations.items.list(conversation.id)).data


async def test_a_conversation_gets_the_items_of_each_turn(client: Client, triton: FakeTriton) -> None:
    items: Any = [{"type": "message", **HI}]
    conversation = await client.conversations.create(metadata={"a": "b"}, items=items)
    for _ in range(2):
        answer = await client.responses.create(**RESPONSE, conversation=conversation.id)
        assert answer.conversation is not None and answer.conversation.id == conversation.id
    assert len(prompt_of(triton)) == 4
    listed: list[Any] = [item async for item in client.conversations.items.list(conversation.id, limit=2, order="asc")]
    assert [item.role for item in listed] == ["user", "user", "assistant", "user", "assistant"]
    item = await client.conversations.items.retrieve(listed[2].id, conversation_id=conversation.id)
    assert item.to_dict() == listed[2].to_dict()
    await client.conversations.items.delete(listed[0].id, conversation_id=conversation.id)
    added = await client.conversations.items.create(conversation.id, items=items)
    await client.responses.create(**RESPONSE, conversation=conversation.id)
    assert len(prompt_of(triton)) == 6
    assert added.data[0].id
    changed = await client.conversations.update(conversation.id, metadata={"c": "d"})
    assert (changed.metadata, changed.created_at) == ({"c": "d"}, conversation.created_at)
    await client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(**RESPONSE, conversation=conversation.id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "responses/x"),
        ("DELETE", "responses/x"),
        ("GET", "responses/x/input_items"),
        *((method, "conversations/x") for method in ("GET", "POST", "DELETE")),
        *((method, "conversations/x/items") for method in ("GET", "POST")),
        *((method, "conversations/x/items/y") for method in ("GET", "DELETE")),
    ],
)
async def test_an_unknown_id_is_404_in_every_route(serve: Serve, method: str, path: str) -> None:
    http = await serve(FakeTriton())
    response = await http.request(method, f"/v1/{path}", json={})
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"][-3:]) == (404, "not_found", "_id")


async def test_references_count_each_time(connect: Callable[..., Awaitable[Client]]) -> None:
    async with await connect(max_body_bytes=4096) as client:
        first = await client.responses.create(model=RESPONSE["model"], input="a" * 3000)
        [item] = (await client.responses.input_items.list(first.id)).data
        items: Any = [{"type": "item_reference", "id": item.id}] * 8
        with pytest.raises(openai.BadRequestError, match="input: the conversation has"):
            await client.responses.create(model=RESPONSE["model"], input=items)


@pytest.mark.parametrize("identity", ["", "a b", "x" * 300, "a\0b"])
async def test_a_strange_id_is_not_stored(client: Client, identity: str) -> None:
    items: Any = [{"type": "item_reference", "id": identity}, HI]
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=RESPONSE["model"], input=items)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(**RESPONSE, previous_response_id=identity)


async def test_items_that_cannot_be_stored_are_refused(client: Client) -> None:
    conversation = await client.conversations.create()
    items: Any = [{"type": "web_search_call", "id": "ws_1"}]
    with pytest.raises(openai.BadRequestError, match="no item of a type that is stored"):
        await client.conversations.items.create(conversation.id, items=items)


async def test_a_server_without_a_store_says_so(connect: Callable[..., Awaitable[Client]]) -> None:
    async with await connect(store="none") as client:
        answer = await client.responses.create(**RESPONSE)
        assert answer.store is False
        for fields in ({"previous_response_id": answer.id}, {"conversation": "conv_1"}):
            with pytest.raises(openai.BadRequestError, match="--store none") as refused:
                await client.responses.create(**RESPONSE, **fields)
            assert (refused.value.param, refused.value.code) == (next(iter(fields)), "unsupported_value")
        with pytest.raises(openai.NotFoundError, match="--store none"):
            await client.responses.retrieve(answer.id)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_cannot_be_stored_arrives_and_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    async def run(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(sqlite.SqliteDatabase, "run", run)
    answer: Any = await client.responses.create(**RESPONSE, stream=is_stream)
    last = [event async for event in answer][-1].response if is_stream else answer
    assert (last.output_text, last.store) == ("Hello.", False)
    with pytest.raises(openai.APIStatusError) as failed:
        await client.responses.retrieve(last.id)
    assert (failed.value.status_code, failed.value.code) == (503, "store_unavailable")


async def test_a_conversation_is_bounded_before_it_is_read(connect: Callable[..., Awaitable[Client]]) -> None:
    async with await connect(max_body_bytes=4096) as client:
        last: Any = None
        with pytest.raises(openai.BadRequestError, match="the conversation has"):
            for _ in range(9):
                last = await client.responses.create(
                    model=RESPONSE["model"], input="a" * 3000, previous_response_id=last and last.id
                )


async def test_a_page_of_large_items_ends_early(connect: Callable[..., Awaitable[Client]]) -> None:
    async with await connect(max_body_bytes=4096) as client:
        texts = [letter * 1500 for letter in "abc"]
        asked: Any = [{"type": "message", "role": "user", "content": text} for text in texts]
        conversation = await client.conversations.create()
        for item in asked:
            await client.conversations.items.create(conversation.id, items=[item])
        page = await client.conversations.items.list(conversation.id, order="asc")
        assert (len(page.data), page.has_more) == (2, True)
        listed: list[Any] = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        assert [item.content[0].text for item in listed] == texts


async def test_stored_items_are_read_into_reserved_memory_alone(
    serve: Serve, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps: list[web.Application] = []
    http = await serve(triton, apps)
    body = RESPONSE | {"input": "a" * 100_000, "instructions": "b" * 100_000}
    first = (await (await http.post("/v1/responses", json=body)).json())["id"]
    triton.script = chunks("a" * 100_000)
    chat = (await (await http.post("/v1/chat/completions", json=CHAT | {"store": True})).json())["id"]
    [item] = (await (await http.get(f"/v1/responses/{first}/input_items")).json())["data"]
    store, memory = apps[0][STORE], apps[0][LARGE_BODIES]
    memory.grow("other", memory._num_free_bytes)
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.01)
    for name in ("items", "items_of", "find_items"):
        monkeypatch.setattr(store, name, None)
    reference = {"type": "item_reference", "id": item["id"]}
    for asked in ({"previous_response_id": first}, {"input": [reference]}):
        assert (await http.post("/v1/responses", json=RESPONSE | asked)).status == 503
    for path in (f"responses/{first}", f"responses/{first}/input_items", f"chat/completions/{chat}"):
        assert (await http.get(f"/v1/{path}")).status == 503


async def test_an_item_with_an_id_that_is_there_gets_a_new_one(client: Client) -> None:
    """Pages behind such an id began again behind the first item with it, without end."""
    same: Any = {"type": "message", "id": "msg_1", **HI}
    conversation = await client.conversations.create(items=[same, same])
    await client.conversations.items.create(conversation.id, items=[same])
    answer = await client.responses.create(
        model=RESPONSE["model"], input=[same, {"type": "item_reference", "id": "msg_1"}], conversation=conversation.id
    )
    listed = [item.id async for item in client.conversations.items.list(conversation.id, limit=1, order="asc")]
    assert (listed[0], len(listed), len(set(listed))) == ("msg_1", 6, 6)
    inputs = [item.id async for item in client.responses.input_items.list(answer.id, limit=1, order="asc")]
    assert inputs == listed[3:5]
