"""Limits over HTTP: charges at every end of a request, headers, refusals with 429 and 503."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from frontend.caller import KeyRole
from frontend.errors import CannotContinue, EngineFailed, InvalidRequest
from frontend.fan_out import MAX_RUNNING
from frontend.gateway.key_file import KeyLimits
from frontend.protocol.embeddings import MAX_INPUTS
from model_repository.contract.output import GenerationChunk, Usage, VectorChunk
from model_repository.contract.request import GenerationRequest, TextPrompt
from tests.fakes import DEMO, FakeTriton, Script, chunks, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, COMPLETION, EMBEDDING, PATHS, RERANKING
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile
from tests.hostile.large import spaces
from tests.waiting import DEADLINE_S

EMBEDDER = served_model(pooling="mean")
VECTOR = VectorChunk(usage=Usage(num_input_tokens=2, num_output_tokens=0), embedding=bytes(4))
NUM_USED = 12  # tokens of a completion of the fake Triton
LIMIT = 1000  # tokens per minute
WINDOW = DEMO.parameters.context_window
PROMPT_BYTES = 300
IMAGE = "data:image/png;base64," + "A" * 60_000


def remaining(headers: Any) -> int:
    """Return the remaining tokens."""
    return int(headers["x-ratelimit-remaining-tokens"])


async def left(http: Any) -> int:
    """Return the tokens that the rate allows, by a request without tokens."""
    response = await http.post("/tokenize", json={"model": DEMO.id, "prompt": "a"})
    assert response.status == 200, await response.text()
    return remaining(response.headers)


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_response_shows_the_remaining_requests_and_tokens(
    serve: Serve, path: str, body: dict[str, Any], stream: bool
) -> None:
    http = await serve(FakeTriton(chunks("x")), requests_per_minute=60, tokens_per_minute=60_000)
    response = await http.post(path, json=body | {"stream": stream, "max_tokens": 100})
    assert response.headers["x-ratelimit-limit-requests"] == "60"
    assert response.headers["x-ratelimit-remaining-requests"] == "59"
    assert response.headers["x-ratelimit-reset-requests"] == "1s"
    assert response.headers["x-ratelimit-limit-tokens"] == "60000"
    num_bytes = int(response.request_info.headers.get("Content-Length", 0)) or len(str(body))
    assert 100 < 60_000 - remaining(response.headers) < 100 + num_bytes


async def test_a_request_beyond_the_rate_gets_429_with_a_time_to_come_back(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")), requests_per_minute=1)
    await http.post("/v1/completions", json=COMPLETION)
    response = await http.post("/v1/completions", json=COMPLETION)
    error = await error_of(response)
    assert (error["status"], error["type"], error["code"]) == (429, "rate_limit_error", "requests")
    assert "1 requests a minute" in error["message"]
    assert 50 <= int(response.headers["Retry-After"]) <= 60
    assert 50_000 <= int(response.headers["retry-after-ms"]) <= 60_000
    assert response.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(response.headers["x-request-id"]) > 10


async def test_a_key_at_its_limit_has_nothing_tokenized(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton, tokens_per_minute=LIMIT, requests_per_minute=2)
    body = {"model": DEMO.id, "input": "a" * 100_000, "truncation": "auto", "max_output_tokens": 10}
    for path, code in (("/v1/responses", "tokens"), ("/tokenize", ""), ("/tokenize", ""), ("/tokenize", "requests")):
        sent = body if path == "/v1/responses" else {"model": DEMO.id, "prompt": "a"}
        response = await http.post(path, json=sent)
        assert response.status == (429 if code else 200), await response.text()
        if code:
            assert (await error_of(response))["code"] == code
    assert (len(triton.requests), len(triton.tokenized)) == (0, 2)


async def test_a_truncated_prompt_is_charged_at_most_the_room_that_it_has(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")), tokens_per_minute=10_000)
    body = {"model": DEMO.id, "input": "a" * 30_000, "truncation": "auto", "max_output_tokens": 2000}
    response = await http.post("/v1/responses", json=body)
    assert 10_000 - remaining(response.headers) == 2000 + WINDOW - 2000


async def test_a_request_larger_than_its_limit_must_not_be_repeated(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton, tokens_per_minute=LIMIT)
    response = await http.post("/v1/completions", json=COMPLETION | {"max_tokens": 500, "n": 2})
    error = await error_of(response)
    assert (error["status"], error["code"]) == (429, "tokens")
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers
    assert triton.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request_costs_the_engines_count(serve: Serve, stream: bool) -> None:
    http = await serve(FakeTriton(chunks("x")), tokens_per_minute=LIMIT)
    response = await http.post("/v1/completions", json=COMPLETION | {"max_tokens": 500, "stream": stream, "n": 1})
    assert remaining(response.headers) < LIMIT - 500
    await response.read()
    assert LIMIT - NUM_USED <= await left(http) < LIMIT  # one token is refilled every 60 ms


@pytest.mark.parametrize(
    ("path", "body", "num_tokens"),
    [
        ("/v1/completions", {"prompt": "a" * 60_000}, WINDOW + 100),
        ("/v1/completions", {"prompt": ["a" * 60_000] * 2}, 2 * WINDOW + 200),
        ("/v1/completions", {"prompt": ["a" * 15 + "\u20ac" * 5] * 2}, 20 + 200),
        ("/v1/completions", {"prompt": [1] * 40, "metadata": {"a": "a" * 60_000}}, 40 + 100),
        ("/v1/completions", {"prompt": "a" * 90, "nobody": "a" * 60_000, "user": "a" * 60_000}, 30 + 100),
        ("/v1/completions", {"prompt": [1] * 40, "truncate_prompt_tokens": 5}, 5 + 100),
        ("/v1/completions", {"prompt": [1] * 5000, "truncate_prompt_tokens": -1}, WINDOW),
        ("/v1/completions", {"prompt": "a <image>", "images": [IMAGE]}, 3 + 100),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 60_000}]}, WINDOW + 100),
    ],
)
async def test_the_estimate_of_a_prompt_is_its_text_and_at_most_the_context_window(
    serve: Serve, path: str, body: dict[str, Any], num_tokens: int
) -> None:
    http = await serve(FakeTriton(chunks("x")), tokens_per_minute=1_000_000)
    response = await http.post(path, json={"model": DEMO.id, "max_tokens": 100} | body)
    assert (response.status, 1_000_000 - remaining(response.headers)) == (200, num_tokens)


async def test_the_query_counts_for_each_document(serve: Serve) -> None:
    scored = VectorChunk(usage=Usage(num_input_tokens=2, num_output_tokens=0), embedding=bytes(4))
    triton = FakeTriton([scored], models=[served_model(pooling="rank", labels=("LABEL_0",))])
    http = await serve(triton, tokens_per_minute=1_000_000)
    response = await http.post("/v1/rerank", json=RERANKING | {"query": "a" * 30, "documents": ["b" * 60] * 2})
    assert (response.status, 1_000_000 - remaining(response.headers)) == (200, 2 * (30 + 1))


async def test_a_completion_without_a_limit_is_charged_as_the_models_recent_ones(serve: Serve) -> None:
    """A charge for the whole window would lock out keys with fewer tokens per minute."""
    http = await serve(FakeTriton(chunks("x")), tokens_per_minute=WINDOW - 1, chat_max_tokens=0)
    costs = []
    for _ in range(8):
        response = await http.post("/v1/chat/completions", json=CHAT)
        assert response.status == 200
        costs.append(remaining(response.headers))
        await response.read()
    assert costs == sorted(costs) and costs[-1] - costs[0] > 100  # each completion had fewer tokens than estimated
    limited = await http.post("/v1/chat/completions", json=CHAT | {"max_tokens": WINDOW - 1})
    assert (await error_of(limited))["code"] == "tokens"


async def test_white_space_takes_no_room_of_other_requests(serve: Serve) -> None:
    """Two such bodies were estimated at 6.7 million tokens of 4.2 million: the next requests were refused."""
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton)
    path, body = spaces(DEMO.id)
    tasks = [
        asyncio.create_task(http.post(path, data=io.BytesIO(body), headers={"Content-Type": "application/json"}))
        for _ in range(3)
    ]
    tasks += [asyncio.create_task(http.post("/v1/completions", json=COMPLETION)) for _ in range(3)]
    async with asyncio.timeout(10):
        while len(triton.requests) < len(tasks):
            assert not [task for task in tasks if task.done()]
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()


async def test_an_error_before_anything_is_generated_costs_no_tokens(serve: Serve) -> None:
    http = await serve(FakeTriton([InvalidRequest("prompt: too long")]), tokens_per_minute=LIMIT)
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 400
    assert await left(http) == LIMIT


async def test_a_completion_that_cannot_continue_costs_its_estimate(serve: Serve) -> None:
    """It was free, and could be repeated without end."""
    http = await serve(FakeTriton([CannotContinue("too much work")]), tokens_per_minute=LIMIT)
    assert (await http.post("/v1/completions", json=COMPLETION | {"max_tokens": 500})).status == 400
    assert await left(http) <= LIMIT - 500 + LIMIT / 60


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stream_that_does_not_finish_costs_and_logs_the_tokens_that_have_come(
    serve: Serve, caplog: pytest.LogCaptureFixture, is_cancelled: bool
) -> None:
    caplog.set_level(logging.INFO)
    usage = Usage(num_input_tokens=PROMPT_BYTES // 3, num_output_tokens=1)
    chunk = GenerationChunk(text="a", usage=usage, num_tokens=300)
    triton = FakeTriton([chunk, asyncio.Event() if is_cancelled else EngineFailed()])
    http = await serve(triton, tokens_per_minute=LIMIT, max_concurrent=1)
    body = COMPLETION | {"prompt": "p" * PROMPT_BYTES, "stream": True, "max_tokens": 500}
    response = await http.post("/v1/completions", json=body)
    await response.content.readline()
    response.close()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    cost = LIMIT - await left(http)  # a sixtieth of the limit comes back each second
    assert PROMPT_BYTES / 3 + 200 <= cost <= PROMPT_BYTES / 3 + 300
    assert f"input_tokens={PROMPT_BYTES // 3} output_tokens=300 " in caplog.text


async def test_a_cancelled_request_without_streaming_costs_its_estimate(serve: Serve) -> None:
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, tokens_per_minute=LIMIT)
    request = asyncio.create_task(http.post("/v1/completions", json=COMPLETION | {"max_tokens": 500}))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    request.cancel()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    assert await left(http) <= LIMIT - 500


async def test_the_concurrency_of_a_key_is_limited_and_each_end_makes_room(serve: Serve) -> None:
    triton = FakeTriton([GenerationChunk(text="a"), asyncio.Event()])
    http = await serve(triton, max_concurrent=1)
    body = CHAT | {"stream": True}
    response = await http.post("/v1/chat/completions", json=body)
    error = await error_of(await http.post("/v1/chat/completions", json=body))
    assert (error["status"], error["code"]) == (429, "requests")
    response.close()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    triton.script = chunks("x")
    for _ in range(3):
        assert (await http.post("/v1/chat/completions", json=CHAT)).status == 200


async def test_a_body_of_many_inputs_is_charged_as_a_whole_and_counts_as_one_request(serve: Serve) -> None:
    http = await serve(
        FakeTriton([VECTOR], models=[EMBEDDER]), tokens_per_minute=LIMIT, requests_per_minute=9, max_concurrent=1
    )
    response = await http.post("/v1/embeddings", json=EMBEDDING | {"input": ["a" * 30] * 40})
    assert response.status == 200
    assert response.headers["x-ratelimit-remaining-requests"] == "8"
    assert LIMIT - remaining(response.headers) == 40 * (10 + 1)
    assert LIMIT - 40 * 2 <= await left(http) < LIMIT
    response = await http.post("/v1/embeddings", json=EMBEDDING | {"input": ["a" * 30] * 100})
    assert (await error_of(response))["code"] == "tokens"


async def test_a_model_that_embeds_gets_the_requests_of_two_steps(serve: Serve) -> None:
    """It would have nothing to do between two steps, since each step ends all of its requests."""
    sixth = asyncio.Event()

    def script(request: GenerationRequest) -> Script:
        if len(triton.requests) == 6:
            sixth.set()
        return [asyncio.Event()]

    triton = FakeTriton(script, models=[served_model(pooling="mean", max_sequences=3)])
    http = await serve(triton)
    request = asyncio.create_task(http.post("/v1/embeddings", json=EMBEDDING | {"input": ["a"] * 20}))
    await asyncio.wait_for(sixth.wait(), DEADLINE_S)
    assert (await http.get("/health/live")).status == 200
    assert triton.num_open == 6
    request.cancel()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)


async def test_another_key_passes_a_body_of_many_inputs(serve: Serve, tmp_path: Path) -> None:
    """The largest body has as many inputs as the queue has places."""
    file, gate = KeyFile(tmp_path / "keys.json"), asyncio.Event()
    file.add("one")
    file.add("two")
    triton = FakeTriton([gate, VECTOR], models=[EMBEDDER])
    http = await serve(triton, key_file=str(file.path), max_in_flight=2)

    def post(key: str, inputs: list[str]) -> asyncio.Task[Any]:
        body = EMBEDDING | {"input": inputs}
        return asyncio.create_task(http.post("/v1/embeddings", json=body, headers=file.headers(key)))

    flood = post("one", ["flood"] * MAX_INPUTS)
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    others = [post("one", ["later"]), post("two", ["other"])]
    gate.set()
    assert [(await each).status for each in (*others, flood)] == [200, 200, 200]
    texts = [each.prompt.text for each in triton.requests if isinstance(each.prompt, TextPrompt)]
    assert len(texts) == MAX_INPUTS + 2
    assert texts.index("other") < MAX_RUNNING  # some were served before it came
    assert texts.index("later") < 3 * MAX_RUNNING


async def test_a_reader_that_does_not_read_holds_no_place_once_its_completion_has_come(serve: Serve) -> None:
    """Twenty slow readers held every place of an idle engine."""
    triton = FakeTriton([GenerationChunk(text="a"), asyncio.Event(), *chunks("x")])
    triton.is_ahead = True  # the rest waits for the reader
    http = await serve(triton, max_in_flight=1, max_concurrent=1, tokens_per_minute=1_000_000)
    held = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    triton.script = chunks("x")
    response = await http.post("/v1/completions", json=COMPLETION)
    assert (response.status, triton.num_open) == (200, 1)  # the first one's handler waits for its reader
    held.close()


async def test_a_limit_of_a_model_holds_for_each_key(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")), model_limits=(f"{DEMO.id}:rpm=1",))
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    error = await error_of(await http.post("/v1/completions", json=COMPLETION))
    assert (error["status"], error["code"]) == (429, "requests")
    assert f"with the model {DEMO.id}" in error["message"]


async def test_tokenization_counts_as_a_request_without_tokens(serve: Serve) -> None:
    http = await serve(FakeTriton(), requests_per_minute=2, tokens_per_minute=LIMIT)
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        response = await http.post(path, json={"model": DEMO.id} | body)
        assert (response.status, remaining(response.headers)) == (200, LIMIT)
    assert (await http.post("/tokenize", json={"model": DEMO.id, "prompt": "a"})).status == 429


async def test_a_full_model_gives_503_with_a_time_to_come_back(serve: Serve) -> None:
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, max_in_flight=1, max_queue_wait_s=0.01, requests_per_minute=9)
    request = asyncio.create_task(http.post("/v1/completions", json=COMPLETION))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    response = await http.post("/v1/completions", json=COMPLETION)
    error = await error_of(response)
    assert (error["status"], error["type"], error["code"]) == (503, "overloaded_error", "overloaded")
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers["x-ratelimit-limit-requests"] == "9"
    request.cancel()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    triton.script = chunks("x")
    response = await http.post("/v1/completions", json=COMPLETION)
    assert (response.status, response.headers["x-ratelimit-remaining-requests"]) == (200, "7")  # 503 was not charged


@pytest.mark.parametrize(
    ("fields", "tier", "at_the_engine"),
    [
        ({}, None, 0),
        ({"service_tier": "flex"}, "flex", 1),
        ({"priority": -3}, "priority", -1),
        ({"priority": 1, "service_tier": "flex"}, "flex", 1),
    ],
)
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_the_engine_gets_the_priority_and_the_response_repeats_an_explicit_one(
    serve: Serve, path: str, body: dict[str, Any], fields: dict[str, Any], tier: str | None, at_the_engine: int
) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    answer = await (await http.post(path, json=body | fields)).json()
    assert answer.get("service_tier") == tier
    assert [request.params.priority for request in triton.requests] == [at_the_engine]


async def test_the_highest_priority_of_a_key_holds_at_the_engine_too(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton, max_priority="low")
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    assert [request.params.priority for request in triton.requests] == [1]


@pytest.mark.parametrize("fields", [{"service_tier": "priority"}, {"priority": -1}])
async def test_a_priority_above_the_highest_of_a_key_is_refused(serve: Serve, fields: dict[str, Any]) -> None:
    http = await serve(FakeTriton(chunks("x")), max_priority="normal")
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | fields))
    assert (error["status"], error["param"]) == (400, next(iter(fields)))
    assert "the highest priority of this key is normal" in error["message"]


@pytest.mark.parametrize(
    ("key", "options", "status"),
    [
        ({}, {}, 400),
        ({}, {"max_priority": "high"}, 200),
        ({"limits": KeyLimits(max_priority=1)}, {}, 200),
        ({"role": KeyRole.ADMIN}, {}, 200),
        ({"role": KeyRole.ADMIN}, {"max_priority": "normal"}, 400),
    ],
)
async def test_only_an_admins_key_may_have_a_high_priority_unless_it_is_given(
    serve: Serve, tmp_path: Path, key: dict[str, Any], options: dict[str, str], status: int
) -> None:
    file = KeyFile(tmp_path / "keys.json")
    file.add("one", **key)
    http = await serve(FakeTriton(chunks("x")), key_file=str(file.path), **options)
    body = COMPLETION | {"service_tier": "priority"}
    async with http.post("/v1/completions", json=body, headers=file.headers("one")) as answer:
        assert answer.status == status


async def test_two_different_priorities_are_refused(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    error = await error_of(
        await http.post("/v1/completions", json=COMPLETION | {"priority": 1, "service_tier": "priority"})
    )
    assert (error["status"], error["param"]) == (400, "priority")


async def test_the_name_of_a_conversation_makes_a_group_of_its_requests_for_each_key(
    serve: Serve, tmp_path: Path
) -> None:
    key_file, triton = KeyFile(tmp_path / "keys.json"), FakeTriton(chunks("x"))
    for key in ("a", "b"):
        key_file.add(key)
    http = await serve(triton, key_file=str(key_file.path))

    async def group(key: str, fields: dict[str, Any], **headers: str) -> str:
        response = await http.post(
            "/v1/completions", json=COMPLETION | fields, headers=key_file.headers(key, **headers)
        )
        assert response.status == 200
        return triton.requests[-1].group

    named = {"prompt_cache_key": "chat-1"}
    assert await group("a", {}) == await group("a", {"prompt_cache_key": ""}) == ""
    first = await group("a", named)
    assert first == await group("a", named, **{"x-session-id": "other"})
    for name in ("x-session-id", "session-id", "x-claude-code-session-id", "x-dynamo-session-id"):
        assert await group("a", {}, **{name: "chat-1"}) == first
    assert len({first, await group("b", named), await group("a", {"prompt_cache_key": "chat-12"})}) == 3
    assert len(await group("a", {"prompt_cache_key": "x" * 100_000})) == len(first)
