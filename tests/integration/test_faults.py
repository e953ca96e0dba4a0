"""What clients see when their request is wrong, or when the server breaks under it. Nothing hangs, nothing lies."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from model_repository import contract
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import DEADLINE_S, wait_until

SLUG = contract.model_id_to_slug(PACED_MODEL)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def whole(stack: Stack) -> Iterator[None]:
    """Have a server that answers, and leave one to the next test."""
    wait_until(lambda: is_whole(stack), "both models answer")
    yield
    wait_until(lambda: is_whole(stack), "both models answer")


def is_whole(stack: Stack) -> bool:
    """Whether both models answer; a tritonserver that has ended is started again."""
    stack.start_again_if_ended()
    return answers(stack, "demo") and answers(stack, PACED_MODEL)


def post(stack: Stack, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and body."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{stack.url}{path}", payload, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def answers(stack: Stack, model: str) -> bool:
    """Whether a model makes a token."""
    return post(stack, "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 1})[0] == 200


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": HELLO} | fields


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (chat(model="nobody"), 404, "model"),
        (b'{"model": "demo", "messages": [', 400, None),
        (chat(messages=[]), 400, "messages"),
        (chat(messages="\ud800"), 400, None),  # no JSON text: it cannot be UTF-8
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_tokens=-5), 400, "max_tokens"),
        (chat(max_tokens="many"), 400, "max_tokens"),
        (chat(temperature=2.1), 400, "temperature"),
        (chat(stop=["a", "b", "c", "d", "e"]), 400, "stop"),
        (chat(n=129), 400, "n"),
        (chat(tools=[{"type": "function", "function": {"name": "no spaces"}}]), 400, "tools"),
        (chat(top_logprobs=5), 400, "top_logprobs"),
        (chat(lora_name="x", store=True), 400, "store"),
        (chat(messages=[{"role": "user", "content": "word " * 5000}]), 400, "messages"),
        (chat(messages=[{"role": "user", "content": "x" * 1_100_000}]), 413, None),
    ],
)
def test_a_bad_request_is_refused_with_field_and_status(
    stack: Stack, body: bytes | dict[str, Any], status: int, param: str | None
) -> None:
    answered, envelope = post(stack, "/v1/chat/completions", body)
    error = envelope["error"]
    assert answered == status, envelope
    assert error["message"] and error["type"]
    assert (error["param"] or "").startswith(param or "")
    assert param is None or param in error["message"]


def test_a_prompt_over_the_context_window_says_so(stack: Stack) -> None:
    status, envelope = post(stack, "/v1/completions", {"model": "demo", "prompt": "word " * 5000})
    assert status == 400
    assert envelope["error"]["code"] == "context_length_exceeded"
    assert "2048" in envelope["error"]["message"]


def test_max_tokens_is_lowered_to_what_the_window_leaves(stack: Stack) -> None:
    body = {"model": PACED_MODEL, "prompt": "Hello " * 2000, "max_tokens": 100_000}
    status, answer = post(stack, "/v1/completions", body)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048


def test_while_triton_is_down_requests_answer_503_and_recover_with_it(stack: Stack, client: OpenAI) -> None:
    stack.launcher.triton.kill()
    status, envelope = post(stack, "/v1/chat/completions", chat())
    assert (status, bool(envelope["error"]["message"])) == (503, True)
    stack.launcher.start_triton_again()
    wait_until(lambda: answers(stack, "demo"), "the demo model answers again")
    assert client.chat.completions.create(model="demo", messages=HELLO).choices  # type: ignore[arg-type]


def test_triton_killed_mid_stream_ends_the_stream_with_an_error(stack: Stack, client: OpenAI) -> None:
    stream = paced_stream(client)
    next(stream)
    stack.launcher.triton.kill()
    with pytest.raises(openai.APIError):
        finish_reasons_of(stream)
    stack.launcher.start_triton_again()


@pytest.mark.parametrize("stage", ["engine", "detokenizer", "tokenizer"])
def test_a_model_serves_again_after_a_stage_was_killed(stack: Stack, stage: str) -> None:
    stack.kill_stage(contract.stage_name(SLUG, stage))
    wait_until(lambda: is_whole(stack), "it answers again")


@pytest.mark.parametrize("stage", ["engine", "detokenizer"])
def test_a_stage_killed_mid_stream_ends_the_stream_with_an_error(stack: Stack, client: OpenAI, stage: str) -> None:
    stream = paced_stream(client)
    next(stream)
    stack.kill_stage(contract.stage_name(SLUG, stage))
    with pytest.raises(openai.APIError):
        finish_reasons_of(stream)


def test_an_engine_killed_under_a_request_without_stream_answers_an_error(stack: Stack, client: OpenAI) -> None:
    import threading

    outcomes: list[Exception | Any] = []

    def ask() -> None:
        try:
            outcomes.append(client.completions.create(model=PACED_MODEL, prompt="Hello", max_tokens=2000))
        except openai.APIError as exc:
            outcomes.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: stack.stats(PACED_MODEL).num_active == 1, "it runs")
    stack.kill_stage(contract.stage_name(SLUG, "engine"))
    thread.join(DEADLINE_S)
    [outcome] = outcomes
    assert isinstance(outcome, openai.InternalServerError)


def paced_stream(client: OpenAI) -> Iterator[Any]:
    """Return a stream of twenty seconds, if nothing ends it."""
    return iter(client.completions.create(model=PACED_MODEL, prompt="Hello", max_tokens=2000, stream=True))


def finish_reasons_of(stream: Iterator[Any]) -> None:
    """Read a broken stream to its end; no chunk may claim that the completion is finished."""
    for chunk in stream:
        assert chunk.choices[0].finish_reason is None
