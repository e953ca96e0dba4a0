"""Keepalive comments in a silent stream, errors behind them, and the deadline of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

from frontend.errors import APIError, EngineFailed, InvalidRequest
from frontend.handlers.keepalive import COMMENT
from frontend.triton.chunk_queue import Announced
from model_repository.contract.output import GenerationChunk
from tests.fakes import FakeTriton, Script, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION, PATHS
from tests.frontend.conftest import Serve

SOON_S = 0.02


async def until_comment(response: aiohttp.ClientResponse) -> None:
    while await response.content.readuntil(b"\n\n") != COMMENT:
        pass


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_comments_fill_the_time_before_the_first_token_and_between_two(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    go_on, go_on_again = asyncio.Event(), asyncio.Event()
    script: Script = [go_on, GenerationChunk(text="a"), go_on_again, *chunks("b")]
    http = await serve(FakeTriton(script), stream_keepalive_s=SOON_S)
    response = await http.post(path, json=body | {"stream": True})
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["x-request-id"].startswith("req_")
    await until_comment(response)
    await until_comment(response)
    go_on.set()
    assert b'"a"' in await response.content.readuntil(b'"a"')
    await until_comment(response)
    go_on_again.set()
    rest = await response.text()
    assert '"b"' in rest and rest.endswith("data: [DONE]\n\n")


async def test_zero_turns_them_off(serve: Serve) -> None:
    go_on = asyncio.Event()
    http = await serve(FakeTriton([go_on, *chunks("a")]), stream_keepalive_s=0)
    asyncio.get_running_loop().call_later(5 * SOON_S, go_on.set)
    response = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    assert ": keepalive" not in await response.text()


@pytest.mark.parametrize("error", [InvalidRequest("no"), EngineFailed(), RuntimeError("secret")])
async def test_an_error_behind_a_comment_is_an_event(serve: Serve, error: Exception) -> None:
    go_on = asyncio.Event()
    http = await serve(FakeTriton([go_on, error]), stream_keepalive_s=SOON_S, resume_within_s=0)
    response = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    await until_comment(response)
    go_on.set()
    text = await response.text()
    code = error.code if isinstance(error, APIError) else "internal_error"
    assert f'"code":"{code}"' in text
    assert "secret" not in text
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("is_strict", [False, True])
async def test_places_that_are_known_only_behind_the_head_are_a_comment_or_an_error(
    serve: Serve, is_strict: bool
) -> None:
    go_on = asyncio.Event()
    announced = Announced(text="", ignored_keywords=("schema.not",))
    triton = FakeTriton([go_on, announced, *chunks("a")])
    http = await serve(triton, stream_keepalive_s=SOON_S, strict_extra=is_strict)
    fields = {"structured_outputs": {"json": {}}, "stream": True, "n": 2} | ({} if is_strict else {"foo": 1})
    response = await http.post("/v1/completions", json=COMPLETION | fields)
    assert response.headers.get("x-ignored-params") == (None if is_strict else "foo")
    await until_comment(response)
    go_on.set()
    text = await response.text()
    if is_strict:
        assert '"param":"structured_outputs.json.not","code":"unknown_parameter"' in text and '"a"' not in text
    else:
        comment = ": x-ignored-params: foo,structured_outputs.json.not\n\n"
        before, found, behind = text.partition(comment)
        assert found and "data:" not in before and '"a"' in behind and comment not in behind
    assert text.endswith("data: [DONE]\n\n")
    assert triton.num_open == 0


async def test_openais_client_reads_a_stream_with_comments(serve: Serve) -> None:
    pause = asyncio.Event()
    http = await serve(FakeTriton([pause, *chunks("a", "b")]), stream_keepalive_s=SOON_S)
    client = openai.AsyncOpenAI(base_url=f"{http._base_url}/v1", api_key="none", max_retries=0)
    async with client:
        stream = await client.completions.create(**COMPLETION, stream=True)  # returns with the first comment
        pause.set()
        assert [chunk.choices[0].text async for chunk in stream] == ["a", "b"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_too_long_is_504(serve: Serve, stream: bool) -> None:
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, request_timeout_s=SOON_S)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"stream": stream}))
    assert (error["status"], error["code"]) == (504, "generation_timeout")
    assert triton.num_open == 0


async def test_a_stream_that_takes_too_long_ends_with_an_error(serve: Serve) -> None:
    triton = FakeTriton([GenerationChunk(text="a"), asyncio.Event()])
    http = await serve(triton, request_timeout_s=0.1)
    text = await (await http.post("/v1/completions", json=COMPLETION | {"stream": True})).text()
    assert "generation_timeout" in text
    assert text.endswith("data: [DONE]\n\n")
    assert triton.num_open == 0
