"""The rules of a stream: a fake Triton breaks each, and that is counted, logged and answered as an error."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from frontend.stream_record import Rule, StreamRecord
from model_repository.contract.output import FinishReason, GenerationChunk, Timing, Usage
from model_repository.contract.request import GenerationRequest, Params, TextPrompt
from tests.fakes import DEMO, USAGE, FakeTriton, Script, chunks
from tests.frontend.conftest import Serve
from tests.frontend.triton.server import FakeTritonServer, listen

BODY = {"model": "org/demo", "prompt": "x", "max_tokens": 10}
STOP = FinishReason.STOP


def last(**usage: int) -> GenerationChunk:
    counts = {"num_input_tokens": 7, "num_output_tokens": 5} | usage
    return GenerationChunk(text="b", finish_reason=STOP, usage=Usage(**counts))


BROKEN: dict[str, tuple[Rule, Script]] = {
    "it ends without a finish": (Rule.ENDS_WITH_A_FINISH, [GenerationChunk(text="a")]),
    "a finish without usage": (
        Rule.USAGE_WITH_THE_FINISH,
        [GenerationChunk(text="a"), GenerationChunk(text="b", finish_reason=STOP)],
    ),
    "usage before the finish": (
        Rule.USAGE_WITH_THE_FINISH,
        [GenerationChunk(text="a"), GenerationChunk(text="b", usage=USAGE)],
    ),
    "more tokens than asked for": (Rule.USAGE_ADDS_UP, [GenerationChunk(text="a"), last(num_output_tokens=11)]),
    "more cached than sent": (Rule.USAGE_ADDS_UP, [GenerationChunk(text="a"), last(num_cached_tokens=8)]),
    "fewer tokens than sent": (
        Rule.USAGE_ADDS_UP,
        [GenerationChunk(text="a", token_ids=(1, 2, 3, 4)), last(num_output_tokens=3)],
    ),
    "half a surrogate pair": (Rule.VALID_UTF8, [GenerationChunk(text="a"), GenerationChunk(text="\ud83d"), last()]),
}


async def violations(http: Any) -> dict[str, float]:
    text = await (await http.get("/metrics")).text()
    lines = [line for line in text.splitlines() if line.startswith("conch_stream_violations_total{")]
    counts = {line.split('rule="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    return {rule: count for rule, count in counts.items() if count}


@pytest.mark.parametrize(("rule", "script"), BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_a_rule_ends_with_an_error_event(
    serve: Serve, caplog: pytest.LogCaptureFixture, rule: Rule, script: Script
) -> None:
    http = await serve(FakeTriton(script))
    answer = await http.post("/v1/completions", json=BODY | {"stream": True}, headers={"x-request-id": "r1"})
    events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    assert answer.status == 200
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "invalid_stream"
    assert [json.loads(event)["choices"][0]["text"] for event in events[:-2]] == ["a"]
    assert await violations(http) == {rule: 1}
    assert f"{rule} request_id=r1" in caplog.text


WHOLE = {name: case for name, case in BROKEN.items() if name != "fewer tokens than sent"}  # which takes two chunks


@pytest.mark.parametrize(("rule", "script"), WHOLE.values(), ids=WHOLE)
async def test_an_answer_that_breaks_a_rule_is_a_status(serve: Serve, rule: Rule, script: Script) -> None:
    http = await serve(FakeTriton(script[-1:] if rule is not Rule.VALID_UTF8 else [last_with("\ud83d")]))
    answer = await http.post("/v1/completions", json=BODY)
    assert (answer.status, (await answer.json())["error"]["code"]) == (500, "invalid_stream")
    assert await violations(http) == {rule: 1}


def last_with(text: str) -> GenerationChunk:
    return GenerationChunk(text=text, finish_reason=STOP, usage=USAGE)


async def test_text_after_the_finish_is_not_passed_on(serve: Serve) -> None:
    def script(request: GenerationRequest) -> Script:
        is_first = request.params.sampling.seed == 0
        return [last_with("a"), GenerationChunk(text="late")] if is_first else chunks("x", "y", "z")

    http = await serve(FakeTriton(script))
    answer = await http.post("/v1/completions", json=BODY | {"stream": True, "n": 2, "seed": 0})
    text = await answer.text()
    assert "late" not in text
    assert "invalid_stream" in text
    assert await violations(http) == {Rule.NOTHING_AFTER_THE_FINISH: 1}


async def test_what_comes_after_the_whole_answer_is_counted_and_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The only completion of a request is read to its finish: what comes then, its call to Triton sees."""
    server = FakeTritonServer()
    server.script = [*chunks("a"), GenerationChunk(text="late")]
    server.configs["org--demo"] = ("ensemble", DEMO.parameters.to_parameters())
    server.index = [("org--demo", "READY"), ("org--demo__engine", "READY")]
    listener, port = await listen(server)
    http = await serve(None, triton_endpoints=(f"127.0.0.1:{port}",))
    answer = await http.post("/v1/completions", json=BODY, headers={"x-request-id": "r1"})
    assert (await answer.json())["choices"][0]["text"] == "a"
    server.script = list(chunks("b"))
    await http.post("/v1/completions", json=BODY)  # it comes after all that
    assert await violations(http) == {Rule.NOTHING_AFTER_THE_FINISH: 1}
    assert f"{Rule.NOTHING_AFTER_THE_FINISH} request_id=r1" in caplog.text
    await listener.stop(None)


async def test_completions_of_one_prompt_agree_on_its_length(serve: Serve) -> None:
    def script(request: GenerationRequest) -> Script:
        return [last(num_input_tokens=7 + request.params.sampling.seed)]

    http = await serve(FakeTriton(script))
    answer = await http.post("/v1/completions", json=BODY | {"n": 2, "seed": 0})
    assert answer.status == 500
    assert await violations(http) == {Rule.USAGE_ADDS_UP: 1}


async def test_a_stream_that_keeps_the_rules_is_no_violation(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    http = await serve(FakeTriton(chunks("a", "b")))
    answer = await http.post("/v1/completions", json=BODY | {"stream": True})
    assert "error" not in await answer.text()
    assert await violations(http) == {}
    assert not caplog.records


def test_gaps_are_counted_by_bucket_and_phases_follow_each_other() -> None:
    times = iter([0.0, 0.5, 0.5005, 0.52])
    params = Params(max_tokens=10, is_stream=True)
    request = GenerationRequest(prompt=TextPrompt("x"), params=params, request_id="r")
    record = StreamRecord([request], 1, clock=lambda: next(times))
    timing = Timing(
        arrival_time_ns=1_000_000_000,
        first_scheduled_time_ns=1_100_000_000,
        first_token_time_ns=1_300_000_000,
        last_token_time_ns=1_400_000_000,
    )
    record.saw(0, GenerationChunk(text="a"))
    record.saw(0, GenerationChunk(text="b"))
    record.saw(0, GenerationChunk(text="c", finish_reason=STOP, usage=USAGE, timing=timing))
    assert sum(record.gap_counts) == 2
    assert record.gap_counts[0] == 1  # half a millisecond
    assert record.gaps_s == pytest.approx(0.02)
    phases = record.slowest
    assert phases is not None
    lengths_s = (phases.tokenization_s, phases.queue_s, phases.prefill_s, phases.decode_s)
    assert lengths_s == pytest.approx((0.2, 0.1, 0.2, 0.1))
