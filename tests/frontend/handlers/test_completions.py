"""Both completions endpoints over HTTP: one answer or a stream, and how they fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from frontend.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
)
from model_repository.capabilities import Capability
from model_repository.contract.output import GenerationChunk, Timing
from model_repository.contract.request import GenerationRequest, TextPrompt
from model_repository.model_parameters import Preset
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.answers import error_of, events_of
from tests.frontend.bodies import CHAT, COMPLETION, PATHS
from tests.frontend.conftest import Serve


async def test_a_chat_stream_is_role_text_usage_done(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("a", "é", "🙂")))
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    events = await events_of(response)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in events[1:-1]] == ["a", "é", "🙂"]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, None, "stop"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("has_usage", [False, True])
async def test_the_last_event_has_the_times_of_the_phases(
    serve: Serve, path: str, body: dict[str, Any], has_usage: bool
) -> None:
    timing = Timing(
        arrival_time_ns=1_000_000,
        first_scheduled_time_ns=3_000_000,
        first_token_time_ns=10_000_000,
        last_token_time_ns=40_000_000,
    )
    first, last = chunks("a", "b")
    http = await serve(FakeTriton([first, replace(last, timing=timing)]))
    options = {"include_timing": True, "include_usage": has_usage}
    *others, end = await events_of(await http.post(path, json=body | {"stream": True, "stream_options": options}))
    assert end["timing"] | {"tokenize": 0} == {"tokenize": 0, "queue": 2, "prefill": 7, "decode": 30}
    assert ("usage" in end and end["usage"] is not None) is has_usage
    assert all("timing" not in event for event in others)


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_chunk_is_a_status(
    serve: Serve, path: str, body: dict[str, Any], stream: bool
) -> None:
    http = await serve(FakeTriton([InvalidRequest("prompt: too long", param="prompt")]))
    error = await error_of(await http.post(path, json=body | {"stream": stream}))
    param = "prompt" if "prompt" in body else "messages"
    assert (error["status"], error["param"], error["code"]) == (400, param, "invalid_value")


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_an_error_after_the_first_chunk_is_an_event(serve: Serve, path: str, body: dict[str, Any]) -> None:
    http = await serve(FakeTriton([GenerationChunk(text="a"), EngineFailed()]))
    response = await http.post(path, json=body | {"stream": True})
    events = await events_of(response)
    assert response.status == 200
    assert events[-1]["error"]["code"] == "engine_failed"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


@pytest.mark.parametrize("first", [(), (GenerationChunk(text="a"),)])
async def test_an_unexpected_exception_is_logged_and_kept_from_the_client(
    serve: Serve, caplog: pytest.LogCaptureFixture, first: tuple[GenerationChunk, ...]
) -> None:
    http = await serve(FakeTriton([*first, RuntimeError("secret")]))
    response = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    text = await response.text()
    assert "secret" not in text
    assert "internal_error" in text
    assert response.status == (200 if first else 500)
    assert "secret" in caplog.text


def prompt_and_seed(request: GenerationRequest) -> list[GenerationChunk]:
    """Return a completion that says of which prompt it is and how it was drawn."""
    assert isinstance(request.prompt, TextPrompt)
    return chunks(f"{request.prompt.text}{request.params.sampling.seed}")


async def test_several_prompts_are_several_generations_and_one_answer(serve: Serve) -> None:
    triton = FakeTriton(prompt_and_seed)
    http = await serve(triton)
    body = COMPLETION | {"prompt": ["p", "q"], "n": 2, "seed": 5}
    answer = await (await http.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["p5", "p6", "q5", "q6"]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (14, 20)
    assert len({request.params.cancel_key for request in triton.requests}) == 4
    events = await events_of(await http.post("/v1/completions", json=body | {"stream": True}))
    texts = {event["choices"][0]["index"]: event["choices"][0]["text"] for event in events}
    assert texts == {0: "p5", 1: "p6", 2: "q5", 3: "q6"}
    assert [event["usage"] is None for event in events] == [True, True, True, False]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_choice_ends_all(serve: Serve, stream: bool) -> None:
    triton = FakeTriton(lambda request: [EngineFailed()] if request.params.sampling.seed == 6 else [asyncio.Event()])
    http = await serve(triton, resume_within_s=0)
    body = CHAT | {"n": 3, "seed": 5, "stream": stream}
    error = await error_of(await http.post("/v1/chat/completions", json=body))
    assert (error["status"], error["code"]) == (500, "engine_failed")
    assert (len(triton.requests), triton.num_open) == (3, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_goes_on_after_a_death_says_so(serve: Serve, stream: bool) -> None:
    deaths = [[EngineFailed()], [EngineFailed()]]
    triton = FakeTriton(lambda request: deaths.pop() if deaths and request.params.sampling.seed == 6 else chunks("x"))
    http = await serve(triton)
    response = await http.post("/v1/chat/completions", json=CHAT | {"n": 3, "seed": 5, "stream": stream})
    text = await response.text()
    if stream:
        assert text.index(": x-resumed: 1\n\n") < text.index(": x-resumed: 2\n\n") < text.index("data: [DONE]")
    else:
        assert response.headers["x-resumed"] == "2"
    assert text.count('"x"') == 3
    metrics = await (await http.get("/metrics")).text()
    assert 'conch_resumed_total{model="org/demo"} 2.0' in metrics


def allow_four_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("handlers.completions", "protocol.completion"):
        monkeypatch.setattr(f"frontend.{module}.MAX_CHOICES", 4)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"n": 5}, "n"),
        ("/v1/completions", COMPLETION | {"n": 5}, "n"),
        ("/v1/completions", COMPLETION | {"best_of": 5}, "n"),
        ("/v1/completions", COMPLETION | {"prompt": ["a", "b", "c"], "n": 2}, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": [[1]] * 5, "logprobs": 1}, "prompt"),
    ],
)
async def test_too_many_choices_are_refused_before_any_work(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    allow_four_choices(monkeypatch)
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    error = await error_of(await http.post(path, json=body))
    assert (error["status"], error["param"]) == (400, param)
    assert (triton.requests, triton.detokenized) == ([], [])
    answer = await http.post("/v1/completions", json=COMPLETION | {"prompt": ["a", "b"], "n": 2})
    assert len((await answer.json())["choices"]) == 4


async def test_a_large_body_for_many_choices_is_refused(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton, max_body_bytes=10_000)
    for n, status in ((4, 200), (5, 400)):
        answer = await http.post("/v1/completions", json=COMPLETION | {"prompt": "a" * 9_000, "n": n})
        assert answer.status == status
    assert len(triton.requests) == 4


async def test_each_prompt_of_a_list_is_checked_before_its_stream_begins(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    body = COMPLETION | {"prompt": ["a", "b"], "n": 2}
    for alone in (body, COMPLETION | {"stream": True, "n": 2}):
        await http.post("/v1/completions", json=alone)
    assert triton.checked == []
    await http.post("/v1/completions", json=body | {"stream": True})
    assert [(number, each.prompt) for number, each in triton.checked] == [(0, TextPrompt("a")), (2, TextPrompt("b"))]
    triton.requests.clear()
    triton.check_error = ContextLengthExceeded("prompt: too long", param="prompt")
    triton.check_error.index = 2
    error = await error_of(await http.post("/v1/completions", json=body | {"stream": True}))
    assert (error["status"], error["code"]) == (400, "context_length_exceeded")
    assert (error["param"], error["message"]) == ("prompt[1]", "prompt[1]: too long")
    assert triton.requests == []


async def test_token_prompts_are_measured_only_for_the_offsets_of_log_probabilities(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    unmeasured: list[dict[str, Any]] = [
        {"prompt": [[1, 2], [3]]},
        {"prompt": [1], "logprobs": 1, "echo": True},
        {"prompt": "a", "logprobs": 1},
        {"prompt": [1], "logprobs": 1, "truncate_prompt_tokens": 5},
    ]
    for fields in unmeasured:
        await http.post("/v1/completions", json=COMPLETION | fields)
    assert triton.detokenized == []
    await http.post("/v1/completions", json=COMPLETION | {"prompt": [[1, 2], [3]], "logprobs": 0})
    assert triton.detokenized == [((1, 2), False), ((3,), False)]


@pytest.mark.parametrize("name", ["gpt-4o", 'a "b"/é:1', "org/team/demo", "formal", "brief"])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_model_answers_by_each_of_its_names(serve: Serve, path: str, body: dict[str, Any], name: str) -> None:
    model = served_model(
        "org/team/demo", aliases=("gpt-4o", 'a "b"/é:1'), adapters=("formal",), presets={"brief": Preset()}
    )
    triton = FakeTriton(chunks("x"), models=[model])
    http = await serve(triton)
    whole = await (await http.post(path, json=body | {"model": name})).json()
    events = await events_of(await http.post(path, json=body | {"model": name, "stream": True}))
    assert {(each["model"], each["system_fingerprint"]) for each in (whole, *events)} == {(name, "fp_demo")}
    assert {request.params.lora_name for request in triton.requests} == {"formal" if name == "formal" else ""}


async def test_a_models_own_defaults_win_over_the_settings(serve: Serve) -> None:
    model = served_model(defaults={"chat_max_tokens": 5, "completion_max_tokens": None})
    for models, expected in (([model], [5, 2048]), ([DEMO], [300, 16])):
        triton = FakeTriton(chunks("x"), models=models)
        http = await serve(triton, chat_max_tokens=300)
        await http.post("/v1/chat/completions", json=CHAT)
        await http.post("/v1/completions", json=COMPLETION)
        assert [request.params.max_tokens for request in triton.requests] == expected


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_seed_that_the_runtime_draws_without_is_listed_as_ignored(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    """TensorRT-LLM's PyTorch backend took seeds, and answered the same request with another text each time."""
    model = served_model(capabilities=frozenset(Capability) - {Capability.SEED})
    http = await serve(FakeTriton(chunks("x"), models=[model]))
    for fields, ignored in (
        ({"seed": 5}, "seed"),
        ({"seed": 5, "foo": 1, "stream": True}, "foo,seed"),
        ({}, None),
        ({"seed": 5, "mirostat": 2}, None),  # drawn by the engine stage itself
    ):
        response = await http.post(path, json=body | fields)
        assert (response.status, response.headers.get("x-ignored-params")) == (200, ignored), fields
    strict = await serve(FakeTriton(chunks("x"), models=[model]), strict_extra=True)
    error = await error_of(await strict.post(path, json=body | {"seed": 5}))
    assert (error["status"], error["param"], error["code"]) == (400, "seed", "unknown_parameter")
    assert "x-ignored-params" not in (await http.post(path, json=body)).headers
