"""Conversations in short: as OpenAI's client and Codex ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from frontend.handlers import turns
from frontend.handlers.summaries import INSTRUCTION
from model_repository.contract.request import ChatPrompt
from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import RESPONSE
from tests.frontend.conftest import Serve

type Client = openai.AsyncOpenAI

HI: Any = {"role": "user", "content": "hi"}
HELLO: Any = {"role": "assistant", "content": "Hi."}
SUMMARY = "Summary of the conversation so far:\n\nBoth greet."


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(chunks("Both greet."))


@pytest.fixture
async def client(serve: Serve, triton: FakeTriton) -> AsyncIterator[Client]:
    http = await serve(triton)
    url = f"{(await http.get('/health/live')).url.origin()}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def prompt_of(triton: FakeTriton) -> list[tuple[str, Any]]:
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


async def test_a_summary_takes_the_place_of_what_is_before_it(client: Client, triton: FakeTriton) -> None:
    compacted = await client.responses.compact(
        model=RESPONSE["model"], input=[HI, {"role": "assistant", "content": "Hi."}]
    )
    assert prompt_of(triton) == [("user", "hi"), ("assistant", "Hi."), ("user", INSTRUCTION)]
    [item] = compacted.output
    assert (compacted.object, item.type) == ("response.compaction", "compaction")
    assert compacted.usage.output_tokens
    await client.responses.create(model=RESPONSE["model"], input=[HI, item.to_dict(), HI])  # type: ignore[list-item]
    assert prompt_of(triton) == [("user", SUMMARY), ("user", "hi")]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_trigger_at_the_end_asks_for_one_item(client: Client, triton: FakeTriton, is_stream: bool) -> None:
    """Codex ends its turn if there is any other item."""
    items: Any = [HI, {"type": "compaction_trigger"}]
    answer: Any = await client.responses.create(model=RESPONSE["model"], input=items, stream=is_stream)
    events = [event async for event in answer] if is_stream else []
    response = events[-1].response if is_stream else answer
    assert [item.type for item in response.output] == ["compaction"]
    if is_stream:
        assert [event.type.removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "output_item.done",
            "completed",
        ]
    await client.responses.create(**RESPONSE, previous_response_id=response.id)
    assert prompt_of(triton) == [("user", SUMMARY), ("user", RESPONSE["input"])]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_conversation_above_the_threshold_is_summarised_first(
    client: Client, triton: FakeTriton, is_stream: bool
) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1}]
    first = await client.responses.create(**RESPONSE)
    answer: Any = await client.responses.create(
        model=RESPONSE["model"],
        input="more",
        previous_response_id=first.id,
        context_management=managed,
        stream=is_stream,
    )
    events = [event async for event in answer] if is_stream else []
    response = events[-1].response if is_stream else answer
    assert [item.type for item in response.output] == ["compaction", "message"]
    assert prompt_of(triton) == [("user", SUMMARY), ("user", "more")]
    assert [request.params.is_stream for request in triton.requests[-2:]] == [False, is_stream]  # a whole summary
    if is_stream:
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.output_index for event in events if event.type == "response.output_item.added"] == [0, 1]
    assert (await client.responses.retrieve(response.id)).to_dict() == response.to_dict()
    await client.responses.create(**RESPONSE, previous_response_id=response.id)
    assert [role for role, _ in prompt_of(triton)] == ["user", "assistant", "user"]
    managed[0]["compact_threshold"] = 10**6
    answer = await client.responses.create(**RESPONSE, previous_response_id=first.id, context_management=managed)
    assert [item.type for item in answer.output] == ["message"]


@pytest.mark.parametrize("content", ["", "gAAAA", "bm9uc2Vuc2UgdGhhdCBpcyBsb25nZXIgdGhhbiBhIGRpZ2VzdCBpcw=="])
async def test_a_summary_of_another_server_is_refused(client: Client, content: str) -> None:
    items: Any = [{"type": "compaction", "encrypted_content": content}, HI]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=RESPONSE["model"], input=items)
    assert refused.value.param == "input[0].encrypted_content"


async def test_an_empty_summary_is_an_error(client: Client, triton: FakeTriton) -> None:
    triton.script = chunks(" ")
    with pytest.raises(openai.InternalServerError, match="no summary"):
        await client.responses.compact(model=RESPONSE["model"], input=[HI])


async def test_a_stored_answer_is_summarised_without_an_input(client: Client, triton: FakeTriton) -> None:
    first = await client.responses.create(**RESPONSE)
    compacted = await client.responses.compact(model=RESPONSE["model"], previous_response_id=first.id)
    assert prompt_of(triton)[-1] == ("user", INSTRUCTION)
    assert [item.type for item in compacted.output] == ["compaction"]


async def test_a_trigger_is_the_last_item(client: Client) -> None:
    items: Any = [{"type": "compaction_trigger"}, HI]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=RESPONSE["model"], input=items)
    assert refused.value.param == "input[0].type"


@pytest.mark.parametrize("has_conversation", [False, True])
@pytest.mark.parametrize("is_background", [False, True])
async def test_the_bounds_of_a_conversation_begin_at_its_last_summary(
    client: Client, monkeypatch: pytest.MonkeyPatch, has_conversation: bool, is_background: bool
) -> None:
    """The items before it counted too, though no prompt has them."""
    monkeypatch.setattr(turns, "MAX_ITEMS", 8)
    conversation, ids = (await client.conversations.create()).id, list[str]()
    for number in range(6):
        managed: Any = [{"type": "compaction", "compact_threshold": 1 if number == 2 else 10**6}]
        previous: Any = (
            {"conversation": conversation} if has_conversation else {"previous_response_id": [None, *ids][-1]}
        )
        answer = await client.responses.create(
            **RESPONSE, **previous, context_management=managed, background=is_background
        )
        async with asyncio.timeout(10):
            while (await client.responses.retrieve(answer.id)).status != "completed":  # noqa: ASYNC110 - as its clients
                await asyncio.sleep(0.01)
        ids.append(answer.id)
    await client.responses.delete(ids[0])
    with pytest.raises(openai.BadRequestError, match="at most 8"):
        previous = {"conversation": conversation} if has_conversation else {"previous_response_id": ids[-1]}
        await client.responses.create(**RESPONSE, **previous)
