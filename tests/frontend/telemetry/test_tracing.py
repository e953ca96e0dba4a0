"""Spans, as a real OTLP receiver gets them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frontend.__main__ import _otlp_endpoint
from frontend.errors import EngineFailed
from frontend.server import app_runner
from frontend.settings import Settings
from model_repository.generation import FinishReason, GenerationChunk, Timing
from tests.fakes import USAGE, FakeTriton

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TIMING = Timing(arrival_time_ns=0, first_scheduled_time_ns=1, first_token_time_ns=2, last_token_time_ns=3)
DONE = GenerationChunk(text="an answer", finish_reason=FinishReason.STOP, usage=USAGE, timing=TIMING)


class Receiver:
    """Takes spans over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                receiver.bodies.append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def spans(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found |= {span.name: span for span in scope.spans}
        return found

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


async def traced(receiver: Receiver, triton: FakeTriton, **headers: str) -> dict[str, Any]:
    """Serve one request and return the spans that the receiver has once the application has ended."""
    import aiohttp
    from aiohttp import web

    runner = app_runner(Settings(drain_timeout_s=0, otlp_endpoint=receiver.endpoint), {"fake:1": triton})
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    body = {"model": "org/demo", "prompt": "a secret", "max_tokens": 10, "stream": True}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
        await (await http.post("/v1/completions", json=body, headers=headers)).read()
    await runner.cleanup()
    return receiver.spans()


def attributes(span: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(item) for item in value.array_value.values]
        return getattr(value, kind)

    return {item.key: plain(item.value) for item in span.attributes}


async def test_a_request_is_a_span_below_its_callers_with_its_phases_below_it(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([DONE]), traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")
    request = spans["POST /v1/completions"]
    assert request.trace_id.hex() == TRACE_ID
    assert request.parent_span_id.hex() == PARENT_ID
    told = attributes(request)
    assert told["http.response.status_code"] == 200
    assert told["gen_ai.request.model"] == "org/demo"
    assert told["gen_ai.usage.input_tokens"] == 7
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    phases = [spans[name] for name in ("tokenization", "queue", "prefill", "decode")]
    assert {span.parent_span_id for span in phases} == {request.span_id}
    for before, after in itertools.pairwise(phases):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    assert request.start_time_unix_nano <= phases[0].start_time_unix_nano
    everything = b"".join(receiver.bodies)
    assert b"a secret" not in everything
    assert b"an answer" not in everything


async def test_a_stream_that_breaks_off_is_an_error_in_its_trace(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([GenerationChunk(text="a"), EngineFailed()]))
    (request,) = spans.values()
    assert request.status.code == request.status.STATUS_CODE_ERROR
    assert attributes(request)["error.type"] == "engine_failed"
    assert attributes(request)["gen_ai.response.finish_reasons"] == ["error"]


async def test_a_caller_that_does_not_sample_gets_no_spans(receiver: Receiver) -> None:
    spans = await traced(receiver, FakeTriton([DONE]), traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00")
    assert spans == {}


def test_the_standard_variables_say_where_spans_go() -> None:
    assert _otlp_endpoint({}) == ""
    assert _otlp_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}) == "http://c:4318/v1/traces"
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}
    assert _otlp_endpoint(both) == "http://t/x"
