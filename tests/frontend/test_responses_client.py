"""Our answers to Responses, read by OpenAI's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from frontend.errors import ContextLengthExceeded, EngineFailed
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.contract.request import ChatPrompt, Prompt, TokenizeAnswer
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
    with pytest.raises(openai.BadRequestError, match="nothing is stored") as refused:
        await client.responses.create(**RESPONSE, previous_response_id="resp_1")
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_value")
    with pytest.raises(openai.NotFoundError, match="none is stored"):
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


class CountingTriton(FakeTriton):
    """Counts a hundred tokens for each message."""

    async def tokenize(
        self, ensemble: str, prompt: Prompt, *, add_special_tokens: bool, sender: str = "", has_strings: bool = False
    ) -> TokenizeAnswer:
        await super().tokenize(ensemble, prompt, add_special_tokens=add_special_tokens, sender=sender)
        num_tokens = 100 * len(prompt.messages) if isinstance(prompt, ChatPrompt) else 1
        if num_tokens > DEMO.parameters.context_window:
            raise ContextLengthExceeded("too long")
        return TokenizeAnswer((5,) * num_tokens, ())


@pytest.mark.parametrize(
    ("num_turns", "max_output_tokens", "num_kept"),
    [(0, None, 0), (1, None, 1), (7, None, 7), (8, None, 7), (500, None, 7), (500, 48, 9), (500, 2000, 1)],
)
async def test_truncation_leaves_out_the_oldest_turns(
    serve: Serve, num_turns: int, max_output_tokens: int | None, num_kept: int
) -> None:
    """A turn has two messages. The window has 2,048 tokens, of which a quarter is for the answer by default."""
    triton = CountingTriton(chunks("Hello."))
    http = await serve(triton)
    turns = [
        [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "Yes."}]
        for number in range(num_turns)
    ]
    items = [{"role": "system", "content": "Be nice."}, *(item for turn in turns for item in turn)]
    body = RESPONSE | {"input": items, "truncation": "auto", "max_output_tokens": max_output_tokens}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status == 200
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    asked = [message["content"] for message in prompt.messages if message["role"] == "user"]
    assert prompt.messages[0]["content"] == "Be nice."
    assert asked == [str(number) for number in range(num_turns)][num_turns - num_kept :]
    assert len(triton.tokenized) <= 12
