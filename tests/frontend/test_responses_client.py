"""Our answers to Responses, read by OpenAI's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from frontend.errors import ContextLengthExceeded, EngineFailed, InvalidRequest
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.contract.request import ChatPrompt
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.bodies import RESPONSE, WEATHER
from tests.frontend.conftest import Serve

FUNCTION: Any = WEATHER["function"]
TOOLS: Any = [{"type": "function", **FUNCTION}, {"type": "custom", "name": "type"}]
CALLS = (
    'Let me see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "type", "arguments": {"input": "a"}}\n</tool_call>'
)
USER = {"role": "user", "content": "hi"}


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(chunks("Hello."))


@pytest.fixture
async def client(serve: Serve, triton: FakeTriton) -> AsyncIterator[openai.AsyncOpenAI]:
    http = await serve(triton)
    url = f"{(await http.get('/health/live')).url.origin()}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="other"):
        await client.responses.create(model="other", input="hi")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(**RESPONSE, previous_response_id="resp_1")
    assert (missing.value.param, missing.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.NotFoundError, match="nothing of this id is stored"):
        await client.responses.retrieve("resp_1")


async def test_an_error_in_the_middle_of_a_stream_ends_it(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    triton.script = [GenerationChunk(text="a"), EngineFailed()]
    events: list[Any] = [event async for event in await client.responses.create(**RESPONSE, stream=True)]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "engine failed" in events[-2].message
    assert events[-1].response.status == "failed"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("finish_reason", FinishReason)
@pytest.mark.parametrize("last", ["", "<t", '"get_w', '{"city": "Z', "</tool_call>", '"a"'])
async def test_every_answer_can_be_sent_back(
    client: openai.AsyncOpenAI, triton: FakeTriton, last: str, finish_reason: FinishReason, is_stream: bool
) -> None:
    text = "".join(CALLS.partition(last)[:2]) if last else CALLS
    triton.script = chunks(*(text[:3], text[3:]) if is_stream else (text,), finish_reason=finish_reason)
    asked: Any = RESPONSE | {"tools": TOOLS}
    if is_stream:
        async with client.responses.stream(**asked) as stream:
            [*_, last_event] = [event async for event in stream]
        response: Any = last_event.response  # type: ignore[union-attr]
    else:
        response = await client.responses.create(**asked)
    triton.script = chunks("Hello.")
    await client.responses.create(**asked | {"input": [USER, *response.output, USER]})


async def test_a_token_count_is_that_of_the_prompt(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    counted = await client.responses.input_tokens.count(model=DEMO.id, input="hi", instructions="Be nice.")
    await client.responses.create(**RESPONSE, instructions="Be nice.")
    assert triton.tokenized == [(triton.requests[-1].prompt, True)]
    assert counted.input_tokens > 0


@pytest.mark.parametrize(("max_output_tokens", "room"), [(None, 1536), (48, 2000), (2048, 0), (9000, 0)])
async def test_truncation_is_the_tokenizers_work(serve: Serve, max_output_tokens: int | None, room: int) -> None:
    """The window has 2,048 tokens, of which a quarter is for the answer by default.

    The frontend tokenized up to 13 times before the limits of the key were asked.
    """
    triton = FakeTriton(chunks("Hello."))
    http = await serve(triton)
    items = [{"role": "user", "content": "a" * 1000}] * 1000  # too long for any tokenizer
    body = RESPONSE | {"input": items, "truncation": "auto", "max_output_tokens": max_output_tokens}
    answer = await http.post("/v1/responses", json=body)
    assert (answer.status, triton.tokenized) == (200, [])
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (len(prompt.messages), prompt.max_prompt_tokens) == (1000, room)


async def test_a_truncated_count_is_that_of_the_truncated_prompt(serve: Serve) -> None:
    triton = FakeTriton(chunks("Hello."))
    http = await serve(triton)
    body = {"model": DEMO.id, "input": "hi", "truncation": "auto"}
    assert (await http.post("/v1/responses/input_tokens", json=body)).status == 200
    assert (await http.post("/v1/responses", json=body)).status == 200
    assert triton.tokenized == [(triton.requests[-1].prompt, True)]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_a_prompt_that_is_refused_is_named_as_in_the_body(serve: Serve, path: str) -> None:
    triton = FakeTriton([ContextLengthExceeded("messages: too long", param="messages")])
    triton.stage_errors["tokenizer"] = InvalidRequest("messages: too long", param="messages")
    answer = await (await serve(triton)).post(path, json={"model": DEMO.id, "input": "hi"})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["message"]) == (400, "input", "input: too long")


async def test_an_error_in_a_begun_stream_names_the_field_of_the_body(serve: Serve) -> None:
    triton = FakeTriton([GenerationChunk(text="a"), ContextLengthExceeded("messages: too long", param="messages")])
    answer = await (await serve(triton)).post("/v1/responses", json={"model": DEMO.id, "input": "hi", "stream": True})
    assert '"message":"input: too long","param":"input"' in await answer.text()
