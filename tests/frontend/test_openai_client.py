"""Our answers, read by the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pydantic
import pytest
from msgspec.structs import replace
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionUserMessageParam

from frontend.errors import EngineFailed
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob
from model_repository.contract.request import ChatPrompt
from model_repository.tokenizer.chat_prompt import ChatEncoder
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.conftest import Serve
from tests.model_repository.tokenizer.models import DEMO_FILES

ANSWER = chunks("Grüße", " 🙂", "日本", finish_reason=FinishReason.LENGTH)
WHOLE = chunks("Grüße 🙂日本", finish_reason=FinishReason.LENGTH)
USER: ChatCompletionUserMessageParam = {"role": "user", "content": "hi"}
CALLS = 'Let me see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


class Weather(pydantic.BaseModel):
    """A tool's arguments, and a form for an answer."""

    city: str


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(WHOLE, models=[served_model(aliases=("gpt-4o",), adapters=("formal",))])


@pytest.fixture
async def url(serve: Serve, triton: FakeTriton) -> str:
    http = await serve(triton)
    return f"{(await http.get('/health/live')).url.origin()}/v1"


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.completions.create(model="other", prompt="hi")
    assert (not_found.value.param, not_found.value.code) == ("model", "model_not_found")
    assert not_found.value.message.endswith("this server does not serve it; its models are gpt-4o, formal, org/demo")
    with pytest.raises(openai.NotFoundError, match=r"model='gpt4o': .*; did you mean gpt-4o\?"):
        await client.completions.create(model="gpt4o", prompt="hi")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model=DEMO.id, prompt="hi", extra_body={"store": True})
    assert (refused.value.param, refused.value.code) == ("store", "unsupported_value")


async def test_an_error_in_the_middle_of_a_stream_is_raised(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    triton.script = [GenerationChunk(text="a"), EngineFailed()]
    stream = await client.completions.create(model=DEMO.id, prompt="hi", stream=True)
    with pytest.raises(openai.APIError, match="engine failed"):
        async for _ in stream:
            pass


def weather_tool() -> ChatCompletionFunctionToolParam:
    return openai.pydantic_function_tool(Weather, name="get_weather")


@pytest.mark.parametrize("is_deprecated", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("finish_reason", FinishReason)
@pytest.mark.parametrize("last", ["", "<t", '"get_w', '{"city": "Z', "</tool_call>"])
async def test_every_answer_can_be_sent_back(
    client: openai.AsyncOpenAI,
    triton: FakeTriton,
    last: str,
    finish_reason: FinishReason,
    is_stream: bool,
    is_deprecated: bool,
) -> None:
    """Arguments that were cut are no JSON, and were refused."""
    text = "".join(CALLS.partition(last)[:2]) if last else ""
    triton.script = chunks(*(text[:3], text[3:]) if is_stream else (text,), finish_reason=finish_reason)
    tools: dict[str, Any] = (
        {"functions": [weather_tool()["function"]]} if is_deprecated else {"tools": [weather_tool()]}
    )
    if is_stream:
        merged = ChatCompletionStreamState()
        async for event in await client.chat.completions.create(
            model=DEMO.id, messages=[USER], stream=True, extra_body=tools
        ):
            merged.handle_chunk(event)
        message: Any = merged.current_completion_snapshot.choices[0].message
    else:
        answer = await client.chat.completions.create(model=DEMO.id, messages=[USER], extra_body=tools)
        message = answer.choices[0].message
    triton.script = WHOLE
    await client.chat.completions.create(model=DEMO.id, messages=[USER, message, USER], extra_body=tools)
    prompt = triton.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    encoder = ChatEncoder(DEMO_FILES, Vocabulary(DEMO_FILES.tokenizer), "hermes")
    sent = DEMO_FILES.tokenizer.decode(list(encoder.encode(prompt)[0]), skip_special_tokens=False)
    said = sent.split("<|im_start|>assistant\n")[1].partition("<|im_end|>")[0]
    arguments = text.partition('"arguments": ')[2].removesuffix("}\n</tool_call>")
    assert said.startswith(text[:11]) and arguments in said


async def test_a_prompts_log_probabilities_are_extra_fields(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    triton.script = [
        replace(
            WHOLE[0], prompt_logprobs=pack_logprobs([TokenLogprob(5, b"a", None), TokenLogprob(6, b"b", -1.0, (), 3)])
        )
    ]
    asked = {"prompt_logprobs": 1}
    expected = [None, {"6": {"logprob": -1.0, "rank": 3, "decoded_token": "b"}}]
    chat = await client.chat.completions.create(model=DEMO.id, messages=[USER], extra_body=asked)
    text = await client.completions.create(model=DEMO.id, prompt="hi", extra_body=asked)
    for answer, place in ((chat, chat), (text, text.choices[0])):
        type(answer).model_validate(answer.model_dump(), strict=True)
        assert (place.model_extra or {})["prompt_logprobs"] == expected
