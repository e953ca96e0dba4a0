"""Embeddings over HTTP: the forms of the input and of the vectors, and how a request fails."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from frontend.endpoints import ENDPOINTS
from frontend.errors import ContextLengthExceeded, EngineFailed, NotFinite
from frontend.fan_out import MAX_RUNNING
from model_repository.contract.output import Usage, VectorChunk
from model_repository.contract.request import GenerationRequest, TextPrompt, TokenPrompt
from model_repository.model_facts import Task
from tests.fakes import FakeTriton, Script, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, CLASSIFICATION, COMPLETION, EMBEDDING, MESSAGE, RERANKING, RESPONSE, SCORING
from tests.frontend.conftest import Serve

PATH = "/v1/embeddings"
EMBEDDER = served_model(pooling="mean")
SHORTENED = served_model(pooling="mean", min_dimensions=2)


def vector(*values: float, num_tokens: int = 7) -> Script:
    """Return the only chunk of an input."""
    usage = Usage(num_input_tokens=num_tokens, num_output_tokens=0)
    embedding = np.array(values, "<f4").tobytes()
    return [VectorChunk(usage=usage, embedding=embedding)]


def of_length(request: GenerationRequest) -> Script:
    """Return a vector that says how long its prompt is."""
    prompt = request.prompt
    assert isinstance(prompt, TextPrompt | TokenPrompt)
    length = len(prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids)
    return vector(float(length), num_tokens=length)


async def test_one_text_gets_one_vector_and_its_tokens(serve: Serve) -> None:
    triton = FakeTriton(vector(0.6, -0.8), models=[EMBEDDER])
    http = await serve(triton)
    answer = await (await http.post(PATH, json=EMBEDDING)).json()
    assert answer.pop("id").startswith("embd-")
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.6, -0.8]}],
        "model": EMBEDDER.id,
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert [each.prompt for each in triton.requests] == [TextPrompt("hi")]


@pytest.mark.parametrize(
    ("value", "lengths"),
    [
        ("abc", [3]),
        (["a", "abc", "ab"], [1, 3, 2]),
        ([5, 6], [2]),
        ([[5], [6, 7, 8]], [1, 3]),
    ],
)
async def test_each_form_of_the_input_is_answered_in_its_order(serve: Serve, value: Any, lengths: list[int]) -> None:
    http = await serve(FakeTriton(of_length, models=[EMBEDDER]))
    answer = await (await http.post(PATH, json=EMBEDDING | {"input": value})).json()
    assert [each["embedding"] for each in answer["data"]] == [[length] for length in lengths]
    assert [each["index"] for each in answer["data"]] == list(range(len(lengths)))
    assert answer["usage"]["total_tokens"] == sum(lengths)


async def test_base64_is_the_bytes_of_the_floats(serve: Serve) -> None:
    http = await serve(FakeTriton(vector(0.1, 0.2), models=[EMBEDDER]))
    answer = await (await http.post(PATH, json=EMBEDDING | {"encoding_format": "base64"})).json()
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(packed, "<f4"), np.array([0.1, 0.2], np.float32))


async def test_a_vector_is_cut_to_the_dimensions_and_has_length_1_again(serve: Serve) -> None:
    http = await serve(FakeTriton(vector(0.3, 0.4, 0.5), models=[SHORTENED]))
    answer = await (await http.post(PATH, json=EMBEDDING | {"dimensions": 2})).json()
    assert answer["data"][0]["embedding"] == pytest.approx([0.6, 0.8])


async def test_the_length_of_the_models_own_vectors_needs_no_training(serve: Serve) -> None:
    """Mem0 always sends it, once its vector store knows it."""
    http = await serve(FakeTriton(vector(0.6, 0.8), models=[EMBEDDER]))
    answer = await (await http.post(PATH, json=EMBEDDING | {"dimensions": 2})).json()
    assert answer["data"][0]["embedding"] == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    ("model", "dimensions", "rule"),
    [
        (EMBEDDER, 2, "Matryoshka"),
        (EMBEDDER, 4, "have 3 values"),
        (SHORTENED, 1, "at least 2"),
        (SHORTENED, 4, "have 3 values"),
    ],
)
async def test_dimensions_that_the_model_was_not_trained_for_are_refused(
    serve: Serve, model: Any, dimensions: int, rule: str
) -> None:
    http = await serve(FakeTriton(vector(1, 0, 0), models=[model]))
    error = await error_of(await http.post(PATH, json=EMBEDDING | {"dimensions": dimensions}))
    assert (error["status"], error["param"]) == (400, "dimensions")
    assert rule in error["message"]


async def test_a_vector_is_written_when_it_arrives(serve: Serve) -> None:
    """All of them at the end would hold the event loop, and each stream, for the time of a whole answer."""
    triton = FakeTriton(
        lambda request: vector(1) if request.prompt == TextPrompt("a") else [asyncio.Event()], models=[EMBEDDER]
    )
    http = await serve(triton)
    error = await error_of(await http.post(PATH, json=EMBEDDING | {"input": ["a", "b"], "dimensions": 2}))
    assert (error["status"], error["param"]) == (400, "dimensions")


@pytest.mark.parametrize(("inputs", "place"), [(["a", "long", "b"], "input[1]"), ("long", "input")])
async def test_the_error_of_one_input_names_it_and_ends_the_others(serve: Serve, inputs: Any, place: str) -> None:
    def script(request: GenerationRequest) -> Script:
        is_long = request.prompt == TextPrompt("long")
        return [ContextLengthExceeded("prompt: 9 tokens", param="prompt")] if is_long else [asyncio.Event()]

    triton = FakeTriton(script, models=[EMBEDDER])
    http = await serve(triton)
    error = await error_of(await http.post(PATH, json=EMBEDDING | {"input": inputs}))
    assert (error["status"], error["code"]) == (400, "context_length_exceeded")
    assert (error["param"], error["message"]) == (place, f"{place}: 9 tokens")
    assert triton.num_open == 0


async def test_an_input_that_is_too_long_for_any_tokenizer_is_not_sent(serve: Serve) -> None:
    triton = FakeTriton(vector(1), models=[served_model(pooling="mean", context_window=8)])
    http = await serve(triton)
    for inputs in (["a", "a" * 2**12], [[1], [1] * 9]):
        error = await error_of(await http.post(PATH, json=EMBEDDING | {"input": inputs}))
        assert (error["status"], error["param"]) == (400, "input[1]")
        assert "maximum context length is 8 tokens" in error["message"]
    assert not triton.requests
    cut = EMBEDDING | {"input": ["a", "a" * 2**12], "truncate_prompt_tokens": -1}
    assert (await http.post(PATH, json=cut)).status == 200
    assert {each.params.truncate_prompt_tokens for each in triton.requests} == {-1}


@pytest.mark.parametrize(
    ("fields", "tier", "at_the_engine"),
    [({}, None, 0), ({"priority": 1}, "flex", 1), ({"service_tier": "priority"}, "priority", -1)],
    ids=str,
)
async def test_the_engine_gets_the_priority_of_each_input(
    serve: Serve, fields: dict[str, Any], tier: str | None, at_the_engine: int
) -> None:
    triton = FakeTriton(vector(1), models=[EMBEDDER])
    http = await serve(triton)
    answer = await (await http.post(PATH, json=EMBEDDING | {"input": ["a", "b"]} | fields)).json()
    assert answer.get("service_tier") == tier
    assert [each.params.priority for each in triton.requests] == [at_the_engine] * 2


async def test_a_failing_engine_is_the_answer(serve: Serve) -> None:
    http = await serve(FakeTriton([EngineFailed()], models=[EMBEDDER]), resume_within_s=0)
    error = await error_of(await http.post(PATH, json=EMBEDDING))
    assert (error["status"], error["code"], error["param"]) == (500, "engine_failed", None)


async def test_numbers_that_are_not_finite_name_their_input(serve: Serve) -> None:
    """Vector stores got nulls."""
    http = await serve(
        FakeTriton(
            lambda request: [NotFinite()] if request.prompt == TextPrompt("bad") else vector(1), models=[EMBEDDER]
        )
    )
    response = await http.post(PATH, json=EMBEDDING | {"input": ["good", "bad"]})
    assert response.headers["x-should-retry"] == "false"
    error = await error_of(response)
    assert (error["status"], error["code"], error["param"]) == (500, "not_finite", "input[1]")
    assert error["message"].startswith("input[1]: ")


async def test_at_most_a_bounded_number_of_inputs_runs_at_a_time(serve: Serve) -> None:
    """A body of 2,048 inputs would otherwise fill the model's queue alone."""
    event, most = asyncio.Event(), []

    def script(request: GenerationRequest) -> Script:
        most.append(triton.num_open)
        if len(triton.requests) == MAX_RUNNING:
            event.set()
        return [event, *of_length(request)]

    triton = FakeTriton(script, models=[EMBEDDER])
    http = await serve(triton, max_in_flight=1000)
    answer = await (await http.post(PATH, json=EMBEDDING | {"input": ["a"] * 300})).json()
    assert len(answer["data"]) == len(triton.requests) == 300
    assert max(most) == MAX_RUNNING


TASKS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": MESSAGE,
    "/v1/responses": RESPONSE,
    "/v1/responses/compact": RESPONSE,
    "/v1/responses/input_tokens": RESPONSE,
    PATH: EMBEDDING,
    "/v1/rerank": RERANKING,
    "/v1/score": SCORING,
    "/v1/classify": CLASSIFICATION,
}
POOLINGS = {"": Task.GENERATE, "mean": Task.EMBED, "rank": Task.SCORE}


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.tasks], ids=lambda each: each.path)
async def test_a_model_with_another_task_is_refused_by_name(serve: Serve, endpoint: Any) -> None:
    for pooling, task in POOLINGS.items():
        triton = FakeTriton([EngineFailed()], models=[served_model(pooling=pooling)])
        http = await serve(triton)
        response = await http.post(endpoint.path, json=TASKS[endpoint.path])
        error = (await response.json()).get("error")
        is_refused = response.status == 400 and f"the task of this model is {task}" in error["message"]
        assert is_refused is (task not in endpoint.tasks)
        assert not (is_refused and triton.requests)
