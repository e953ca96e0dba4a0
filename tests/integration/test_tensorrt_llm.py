"""The tensorrt_llm runtime inside a real Triton, on a double of TensorRT-LLM's Python package: both backends.

test_parameters.py shows the effects of the API's fields there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import CONTROL, model_id_to_ensemble, stage_name
from tests.integration.api import ANSWER, CHAT, COMPLETIONS, WEATHER, Answer, Api, chat_text, question_body
from tests.integration.replicas import streaming, until
from tests.integration.stack import ENGINE_MODEL, MAX_SEQUENCES, Stack
from tests.launching import KEY_OF_ALL
from tests.tensorrt_llm_artifact import ADAPTER
from tests.waiting import DEADLINE_S, wait_until

MODELS = ["demo", ENGINE_MODEL]
LONG = {"ignore_eos": True, "max_tokens": 1500}


@pytest.fixture
def api(tensorrt_llm_api: Api) -> Api:
    """A client of the server with the double."""
    return tensorrt_llm_api


@pytest.fixture(autouse=True)
def idle(tensorrt_llm_stack: Stack) -> Iterator[None]:
    """Begin and end with idle engines."""
    yield
    for model in MODELS:
        tensorrt_llm_stack.wait_until_idle(model)


@pytest.mark.parametrize("model", MODELS)
def test_a_chat_is_answered_whole_and_in_pieces(api: Api, model: str) -> None:
    answer = api.ask(CHAT, model=model)
    assert (answer.text, answer.choice["finish_reason"]) == (ANSWER, "stop")
    assert answer.body["usage"]["completion_tokens"] == 27
    events = api.events(CHAT, question_body(CHAT) | {"model": model})
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(piece or "" for piece in pieces) == ANSWER
    assert sum(map(bool, pieces)) > 5
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("model", MODELS)
def test_concurrent_streams_equal_lone_ones(api: Api, model: str) -> None:
    bodies = [
        question_body(COMPLETIONS, f"Count from 1 to {last}.") | {"model": model, "max_tokens": 40}
        for last in range(2, 4 + MAX_SEQUENCES)
    ]

    def stream(body: dict[str, Any]) -> str:
        return "".join(event["choices"][0]["text"] for event in api.events(COMPLETIONS, body))

    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(stream, bodies))
    assert together == [stream(body) for body in bodies]


@pytest.mark.parametrize("model", MODELS)
def test_a_request_whose_client_hangs_up_is_aborted(tensorrt_llm_stack: Stack, api: Api, model: str) -> None:
    before = tensorrt_llm_stack.stats(model)
    hang_up(api, {"model": model, "prompt": "Hello", **LONG})
    tensorrt_llm_stack.wait_until_idle(model)
    after = tensorrt_llm_stack.stats(model)
    assert after.num_cancelled == before.num_cancelled + 1
    assert after.num_step_tokens - before.num_step_tokens < 1000


def test_a_stream_whose_abort_would_kill_the_engine_runs_out_unread(tensorrt_llm_stack: Stack, api: Api) -> None:
    before = tensorrt_llm_stack.stats(ENGINE_MODEL)
    hang_up(api, {"model": ENGINE_MODEL, "prompt": "Hello", "logprobs": 1, **LONG, "max_tokens": 600})
    wait_until(
        lambda: tensorrt_llm_stack.stats(ENGINE_MODEL).num_cancelled == before.num_cancelled + 1, "it is cancelled"
    )
    assert tensorrt_llm_stack.stats(ENGINE_MODEL).num_active == 1  # its place is taken until it ends by itself
    assert api.ask(CHAT, model=ENGINE_MODEL).text == ANSWER
    tensorrt_llm_stack.wait_until_idle(ENGINE_MODEL)
    assert tensorrt_llm_stack.stats(ENGINE_MODEL).epoch == before.epoch


@pytest.mark.parametrize("model", MODELS)
def test_a_dead_worker_ends_all_requests_with_errors_and_the_model_comes_back(
    tensorrt_llm_stack: Stack, api: Api, model: str
) -> None:
    epoch = tensorrt_llm_stack.stats(model).epoch
    outcomes: list[Answer] = []
    bodies = [{"model": model, "prompt": "Hello", **LONG}] * (MAX_SEQUENCES + 1)  # one of them waits
    threads = [
        threading.Thread(target=lambda body=body: outcomes.append(api.post(COMPLETIONS, body))) for body in bodies
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: tensorrt_llm_stack.stats(model).num_waiting == 1, "all are there")
    tensorrt_llm_stack.kill_worker(stage_name(model_id_to_ensemble(model), "engine"))
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [outcome.status for outcome in outcomes] == [500] * len(bodies)
    wait_until(lambda: api.post(COMPLETIONS, bodies[0] | {"max_tokens": 1}).status == 200, "it answers again")
    assert tensorrt_llm_stack.stats(model).epoch != epoch


@pytest.mark.parametrize("model", MODELS)
async def test_a_gpu_error_ends_every_stream_with_an_error_event(tensorrt_llm_stack: Stack, model: str) -> None:
    epoch = tensorrt_llm_stack.stats(model).epoch
    engine = stage_name(model_id_to_ensemble(model), "engine")
    async with streaming(tensorrt_llm_stack.url, 1500, model=model, ignore_eos=True) as outcomes:
        await until(lambda: any(outcome.text for outcome in outcomes), "the first ones have begun")
        await asyncio.to_thread(tensorrt_llm_stack.kill_worker, engine, signal.SIGABRT)
    assert all(outcome.is_cleanly_broken for outcome in outcomes), outcomes
    assert any(outcome.status == 200 for outcome in outcomes)
    await until(lambda: is_reloaded(tensorrt_llm_stack, model, epoch), "it was loaded again")


def is_reloaded(stack: Stack, model: str, epoch: int) -> bool:
    """Whether another engine answers than that of this epoch."""
    status = Api(stack.url).post(COMPLETIONS, {"model": model, "prompt": "Hello", "max_tokens": 1}).status
    return status == 200 and stack.stats(model).epoch != epoch


def test_an_engine_keeps_to_structured_output_and_required_tools(api: Api) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [3, 4]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert json.loads(api.ask(CHAT, model=ENGINE_MODEL, temperature=1.5, response_format=form).text)["a"] in (3, 4)
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = api.ask(CHAT, model=ENGINE_MODEL, tools=[WEATHER], tool_choice=named).choice
    [call] = choice["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"city"}


@pytest.mark.parametrize("model", MODELS)
def test_structured_output_that_no_token_can_follow_is_refused(api: Api, model: str) -> None:
    [yes] = api.post("/tokenize", {"model": model, "prompt": "b"}).body["tokens"]
    form = {"type": "regex", "regex": "[b]"}
    answer = api.ask(CHAT, model=model, response_format=form, logit_bias={str(yes): -100})
    assert (answer.status, answer.error["param"]) == (400, "response_format")
    assert "nothing can follow" in answer.error["message"]


def test_both_backends_give_the_same_log_probabilities(api: Api) -> None:
    prompt = chat_text("Count from 1 to 9.")
    body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 2, "echo": True}
    first, second = (api.post(COMPLETIONS, body | {"model": model}).choice for model in MODELS)
    assert first["text"] == second["text"] == prompt + ANSWER[:5]
    one, other = (choice["logprobs"]["token_logprobs"] for choice in (first, second))
    assert one[0] is other[0] is None
    assert len(one) == 18 + 5
    assert one[1:] == pytest.approx(other[1:], abs=1e-4)
    assert all(value <= 0 for value in one[1:])


def test_an_adapter_answers_under_its_name(api: Api) -> None:
    plain, formal = (api.ask(CHAT, "What is the capital of France?", model=name).text for name in ("demo", ADAPTER))
    assert "Paris" in plain and "Paris" in formal
    assert plain != formal


def test_cached_tokens_are_counted(api: Api) -> None:
    body = {"model": "demo", "prompt": "Once upon a time " * 20, "max_tokens": 1}
    usages = [api.post(COMPLETIONS, body).body["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] == 0 and cached[1] >= 32


def hang_up(api: Api, body: dict[str, Any]) -> None:
    """Stream a completion, read its first piece, and go."""
    request = urllib.request.Request(
        api.url + COMPLETIONS, json.dumps(body | {"stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        assert response.readline().startswith(b"data: {")


def test_an_adapter_is_loaded_and_unloaded_while_the_model_runs(api: Api, tensorrt_llm_stack: Stack) -> None:
    def order(model: str, **message: str) -> None:
        control = tensor(CONTROL, json.dumps({**message, "key": KEY_OF_ALL}))
        tensorrt_llm_stack.infer(stage_name(model, "engine"), {CONTROL.name: control})

    question = "What is the capital of France?"
    with pytest.raises(AssertionError, match="the engine was built without adapters"):
        order(ENGINE_MODEL, load_adapter="later", source="formal")
    order("demo", load_adapter="later", source="formal")
    wait_until(lambda: api.ask(CHAT, question, model="later").status == 200, "the frontend knows it")
    assert api.ask(CHAT, question, model="later").text == api.ask(CHAT, question, model=ADAPTER).text
    order("demo", unload_adapter="later")
    wait_until(lambda: api.ask(CHAT, question, model="later").status == 404, "the frontend has noticed")
