"""Spans, as a real OTLP receiver gets them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import pytest

from frontend.errors import EngineFailed
from frontend.request_context import RequestFacts
from frontend.server import app_runner
from frontend.settings import Settings
from frontend.telemetry import tracing
from model_repository.contract.output import FinishReason, GenerationChunk, Timing
from tests.fakes import USAGE, FakeTriton
from tests.frontend.bodies import USER
from tests.otlp_receiver import Receiver, attributes, receiving

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TIMING = Timing(arrival_time_ns=0, first_scheduled_time_ns=1, first_token_time_ns=2, last_token_time_ns=3)
DONE = GenerationChunk(text="an answer", finish_reason=FinishReason.STOP, usage=USAGE, timing=TIMING)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


async def traced(
    receiver: Receiver, triton: FakeTriton, n: int = 1, path: str = "/v1/completions", **headers: str
) -> dict[str, Any]:
    """Serve one request and return the spans that the receiver has once the application has ended."""
    runner = app_runner(Settings(drain_timeout_s=0, otlp_endpoint=receiver.endpoint), {"fake:1": triton})
    await runner.setup()
    [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
    body: dict[str, Any] = {"model": "org/demo", "max_tokens": 10, "stream": True}
    asked: dict[str, Any] = {"/v1/completions": {"prompt": "a secret", "n": n}, "/v1/responses": {"input": "a secret"}}
    body |= asked.get(path, {"messages": [USER]})
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await (await http.post(path, json=body, headers=headers)).read()
    await runner.cleanup()
    return receiver.by_name()


async def test_a_request_is_a_span_below_its_callers_with_its_phases_below_it(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([DONE]), traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")
    request = spans["POST /v1/completions"]
    assert request.trace_id.hex() == TRACE_ID
    assert request.parent_span_id.hex() == PARENT_ID
    assert attributes(request)["http.response.status_code"] == 200
    completion = spans["text_completion org/demo"]
    assert completion.parent_span_id == request.span_id
    assert completion.kind == completion.SPAN_KIND_CLIENT
    found = attributes(completion)
    assert found["gen_ai.request.model"] == "org/demo"
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.top_p"]) == (10, 1.0)
    assert found["gen_ai.usage.input_tokens"] == 7
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    phases = [spans[name] for name in ("tokenization", "queue", "prefill", "decode", "detokenization")]
    assert {span.parent_span_id for span in phases} == {completion.span_id}
    stages = [attributes(span)["conch.stage"] for span in phases]
    assert stages == ["tokenizer", "engine", "engine", "engine", "detokenizer"]
    for before, after in itertools.pairwise(phases):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    outer = (request, completion, phases[0])
    assert [span.start_time_unix_nano for span in outer] == sorted(span.start_time_unix_nano for span in outer)
    assert phases[-1].end_time_unix_nano <= request.end_time_unix_nano
    everything = b"".join(receiver.bodies)
    assert b"a secret" not in everything
    assert b"an answer" not in everything


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_chat_of_each_api_is_a_chat(receiver: Receiver, path: str) -> None:
    assert attributes((await traced(receiver, FakeTriton([DONE]), path=path))["chat org/demo"])


async def test_a_stream_that_breaks_off_is_an_error_in_its_trace(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([GenerationChunk(text="a"), EngineFailed()]))
    assert len(spans) == 2
    for span in spans.values():
        assert span.status.code == span.status.STATUS_CODE_ERROR
        assert attributes(span)["error.type"] == "engine_failed"
    assert attributes(spans["text_completion org/demo"])["gen_ai.response.finish_reasons"] == ["error"]


async def test_the_completions_of_one_prompt_count_it_once(receiver: Receiver) -> None:
    await traced(receiver, FakeTriton([DONE]), n=3)
    found = [attributes(span) for span in receiver.spans() if span.name.startswith("text_completion")]
    assert [each["gen_ai.usage.output_tokens"] for each in found] == [5, 5, 5]
    assert [each.get("gen_ai.usage.input_tokens") for each in found] == [7, None, None]
    assert {each["gen_ai.request.choice.count"] for each in found} == {3}


async def test_a_caller_that_does_not_sample_gets_no_spans(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([DONE]), traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00")
    assert spans == {}


class SilentCollector:
    """An exporter to a collector that answers when a test says so."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.is_shut_down = False

    def export(self, spans: Sequence[Any]) -> None:
        self.answers.wait()

    def shutdown(self) -> None:
        """Be told that nothing follows, which OpenTelemetry does after 30 s."""
        self.is_shut_down = True


def test_the_end_does_not_wait_for_a_collector_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_CLOSE_S", 0.01)
    collector = SilentCollector()
    tracer = tracing.RequestTracer(collector)
    facts = RequestFacts("r", started_at=0.0)
    tracer.begin(facts, {})
    tracer.end(facts, method="GET", endpoint="/", status=200)
    tracer.close()
    assert not collector.is_shut_down and "the last spans are lost" in caplog.text
    collector.answers.set()
