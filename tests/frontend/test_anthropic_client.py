"""Our answers, read by Anthropic's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from frontend.errors import EngineFailed, QueueFull
from model_repository.contract.output import FinishReason, GenerationChunk
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.bodies import MESSAGE
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile

TOOL: Any = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALLS = 'Let me see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
USER = {"role": "user", "content": "hi"}


@pytest.fixture
async def triton() -> FakeTriton:
    return FakeTriton(chunks("Hello."))


@pytest.fixture
async def claude(serve: Serve, triton: FakeTriton) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = await serve(triton)
    url = str((await http.get("/health/live")).url.origin())
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_errors_are_the_clients_own_classes(claude: anthropic.AsyncAnthropic, triton: FakeTriton) -> None:
    with pytest.raises(anthropic.NotFoundError) as not_found:
        await claude.messages.create(**MESSAGE | {"model": "other"})
    assert not_found.value.request_id and not_found.value.request_id.startswith("req_")
    triton.script = [QueueFull("full")]
    with pytest.raises(anthropic.APIStatusError) as full:
        await claude.messages.create(**MESSAGE)
    assert (full.value.status_code, full.value.body["error"]["type"]) == (529, "overloaded_error")  # type: ignore[index]


async def test_an_error_in_the_middle_of_a_stream_is_raised(
    claude: anthropic.AsyncAnthropic, triton: FakeTriton
) -> None:
    triton.script = [GenerationChunk(text="a"), EngineFailed()]
    with pytest.raises(anthropic.APIStatusError, match="engine failed"):
        async for _ in await claude.messages.create(**MESSAGE, stream=True):
            pass


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/messages"])
async def test_errors_before_the_handler_have_the_same_form(serve: Serve, tmp_path: Any, path: str) -> None:
    file = KeyFile(tmp_path / "keys.json")
    key = file.add("somebody")
    http = await serve(FakeTriton(chunks("x")), key_file=str(file.path))
    sent = {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    cases: list[tuple[str, dict[str, str], Any, int, str]] = [
        ("POST", {}, MESSAGE, 401, "authentication_error"),
        ("POST", sent, {}, 400, "invalid_request_error"),
        ("GET", sent, None, 405, "invalid_request_error"),
        ("POST", sent, MESSAGE, 200, ""),
        ("POST", {"Authorization": f"Bearer {key}"}, MESSAGE, 200, ""),
    ]
    for method, headers, body, status, kind in cases:
        response = await http.request(method, path, json=body, headers=headers)
        assert response.status == status
        assert not kind or (await response.json())["error"]["type"] == kind
        assert response.headers["request-id"] == response.headers["x-request-id"]
    unknown = await http.post(f"{path}/batches", headers=sent)
    assert (unknown.status, (await unknown.json())["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("finish_reason", FinishReason)
@pytest.mark.parametrize("last", ["", "<t", '"get_w', '{"city": "Z', "</tool_call>"])
async def test_every_answer_can_be_sent_back(
    claude: anthropic.AsyncAnthropic, triton: FakeTriton, last: str, finish_reason: FinishReason, is_stream: bool
) -> None:
    text = "".join(CALLS.partition(last)[:2]) if last else ""
    triton.script = chunks(*(text[:3], text[3:]) if is_stream else (text,), finish_reason=finish_reason)
    asked: Any = MESSAGE | {"tools": [TOOL]}
    if is_stream:
        async with claude.messages.stream(**asked) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await claude.messages.create(**asked)
    triton.script = chunks("Hello.")
    await claude.messages.create(
        **asked | {"messages": [USER, {"role": "assistant", "content": message.content}, USER]}
    )


async def test_a_token_count_is_that_of_the_prompt(claude: anthropic.AsyncAnthropic, triton: FakeTriton) -> None:
    counted = await claude.messages.count_tokens(model=DEMO.id, messages=[USER], system="Be nice.")  # type: ignore[list-item]
    await claude.messages.create(**MESSAGE | {"system": "Be nice."})
    assert triton.tokenized == [(triton.requests[-1].prompt, True)]
    assert counted.input_tokens > 0


async def test_models_are_listed_in_the_clients_own_type(claude: anthropic.AsyncAnthropic) -> None:
    [model] = [each async for each in claude.models.list(limit=1)]
    assert (model.id, model.display_name, model.type, model.created_at.year) == (DEMO.id, DEMO.id, "model", 2023)
    assert await claude.models.retrieve(DEMO.id) == model
    with pytest.raises(anthropic.NotFoundError):
        await claude.models.retrieve("other")
