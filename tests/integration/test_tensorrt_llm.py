"""The tensorrt_llm runtime inside a real Triton, on a double of TensorRT-LLM's Python package: both backends.

test_parameters.py shows the effects of the API's fields there.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import CONTROL, model_id_to_ensemble, stage_name
from model_repository.errors import TooManyWaiting, error_from_message
from tests.integration.api import ANSWER, CHAT, COMPLETIONS, Api, question_body
from tests.integration.replicas import streaming, until
from tests.integration.stack import ENGINE_MODEL, NUM_KV_TOKENS, Stack
from tests.integration.test_grpc_tensors import inputs
from tests.integration.test_telemetry import scraped
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


def test_a_keyword_of_tensorrt_llm_has_its_effect(tensorrt_llm_stack: Stack, api: Api) -> None:
    api.post(COMPLETIONS, {"model": "demo", "prompt": "Hello", "max_tokens": 4})
    wait_until(lambda: tensorrt_llm_stack.stats("demo").max_kv_tokens == NUM_KV_TOKENS, "the size of the KV cache")


def test_an_idle_model_answers_while_a_read_of_statistics_waits(tensorrt_llm_stack: Stack, api: Api) -> None:
    def is_waiting() -> bool:
        reads = [line for line in tensorrt_llm_stack.log if "double: a read of statistics" in line]
        return bool(reads) and reads[-1].endswith("waits")

    for _ in range(2):
        assert api.ask(CHAT, model="demo").text == ANSWER
        wait_until(is_waiting, "all statistics are read")


def test_a_use_of_the_kv_cache_that_tensorrt_llm_does_not_say_is_not_estimated(tensorrt_llm_stack: Stack) -> None:
    assert tensorrt_llm_stack.stats(ENGINE_MODEL).max_kv_tokens is None
    usage, size = ((name, ENGINE_MODEL) for name in ("conch_kv_cache_usage_ratio", "conch_engine_kv_tokens_max"))
    wait_until(
        lambda: (
            math.isnan(scraped(tensorrt_llm_stack.url)[1].get(usage, 0.0))
            and math.isnan(scraped(tensorrt_llm_stack.triton_metrics_url)[1][size])
        ),
        "the metrics are not a number",
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_request_whose_client_hangs_up_is_aborted(tensorrt_llm_stack: Stack, api: Api, model: str) -> None:
    before = tensorrt_llm_stack.stats(model)
    hang_up(api, {"model": model, "prompt": "Hello", **LONG})
    tensorrt_llm_stack.wait_until_idle(model)
    after = tensorrt_llm_stack.stats(model)
    assert after.num_cancelled == before.num_cancelled + 1
    assert after.num_step_tokens - before.num_step_tokens < 1000


@pytest.mark.parametrize("model", MODELS)
async def test_streams_survive_a_gpu_error(tensorrt_llm_stack: Stack, model: str) -> None:
    epoch = tensorrt_llm_stack.stats(model).epoch
    engine = stage_name(model_id_to_ensemble(model), "engine")
    async with streaming(tensorrt_llm_stack.url, 100, model=model, ignore_eos=True, temperature=0) as outcomes:
        await until(lambda: any(outcome.text for outcome in outcomes), "the first ones have begun")
        await asyncio.to_thread(tensorrt_llm_stack.kill_worker, engine, signal.SIGABRT)
    assert all(outcome.is_whole for outcome in outcomes), outcomes
    assert len({outcome.text for outcome in outcomes}) == 1
    assert any(outcome.num_resumed for outcome in outcomes)
    await until(lambda: is_reloaded(tensorrt_llm_stack, model, epoch), "it was loaded again")


def test_the_grammars_of_one_sender_leave_room_for_others(tensorrt_llm_stack: Stack) -> None:
    """The workers counted all as one sender's: the next one, of anyone, was the client's mistake."""

    def stream(sender: str, letter: str, max_tokens: int) -> Any:
        rules = [f"r{level} ::= r{level + 1} r{level + 1}" for level in range(19)]  # 15 MB when compiled
        grammar = "\n".join(["root ::= r0", *rules, f'r19 ::= "{5 * letter}"'])
        guide = {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": grammar}
        return tensorrt_llm_stack.stream("demo", inputs(sender=sender, max_tokens=max_tokens, stream=True, **guide))

    held = [stream("hog", letter, 1500) for letter in "abcd"]
    try:
        assert [next(call).error_message for call in held] == [""] * 4
        other = stream("other", "e", 4)  # it waits for a place in the batch
        [refused] = stream("hog", "f", 4)
        assert isinstance(error_from_message(refused.error_message), TooManyWaiting)
    finally:
        for call in held:
            call.cancel()
    assert {response.error_message for response in other} == {""}


def is_reloaded(stack: Stack, model: str, epoch: int) -> bool:
    """Whether another engine answers than that of this epoch."""
    status = Api(stack.url).post(COMPLETIONS, {"model": model, "prompt": "Hello", "max_tokens": 1}).status
    return status == 200 and stack.stats(model).epoch != epoch


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
