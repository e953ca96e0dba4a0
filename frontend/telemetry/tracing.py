"""OpenTelemetry spans of requests. They are made when a request has ended, so a stream pays nothing for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from frontend.request_context import CLIENT_CLOSED, RequestFacts
from frontend.settings import SettingsError
from frontend.stream_record import Phases, StreamRecord

logger = logging.getLogger(__name__)

_CLOSE_S = 2.0

type _UnixClock = Callable[[float], int]  # monotonic seconds to nanoseconds since 1970


def open_tracer(endpoint: str) -> RequestTracer | None:
    """Return the tracer for an endpoint, None without an endpoint.

    Raises:
        SettingsError: the packages of the extra `traces` are not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as exc:
        rule = "needs the packages of the extra `traces` (in a checkout: pip install '.[traces]')"
        raise SettingsError(f"--otlp-endpoint={endpoint!r}: {rule}") from exc
    return RequestTracer(OTLPSpanExporter(endpoint=endpoint))


class RequestTracer:
    """Makes the spans of requests, and exports them from a thread.

    The SDK reads the other OTEL_* variables: service name, sampler, headers, batches.
    """

    def __init__(self, exporter: Any) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource({SERVICE_NAME: "conch"}).merge(Resource.create())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("conch", version("conch"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        """Open the span of a request, below the caller's span if there is one (W3C trace context)."""
        from opentelemetry.trace import SpanKind

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            "HTTP",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=_unix_clock()(facts.started_at),
        )
        facts.span = span
        facts.trace_id = f"{span.get_span_context().trace_id:032x}"

    def end(self, facts: RequestFacts, *, method: str, endpoint: str, status: int) -> None:
        """Close the span of a request, with the spans of its completions below it."""
        from opentelemetry.trace import StatusCode

        span = facts.span
        span.update_name(f"{method} {endpoint}")
        span.set_attributes(
            {
                "http.request.method": method,
                "http.route": endpoint,
                "http.response.status_code": status,
                "conch.request_id": facts.request_id,
                "gen_ai.request.model": facts.model,
            }
        )
        if facts.error is not None and (facts.error.status >= 500 or status == 200):
            span.set_status(StatusCode.ERROR)
        if facts.error_code is not None:
            span.set_attribute("error.type", facts.error_code)
        if facts.stream is not None and span.is_recording():
            unix_ns = _unix_clock()
            for index in range(len(facts.stream.completions)):
                self._completion(facts, facts.stream, index, unix_ns)
        span.end()

    def close(self) -> None:
        """Send the remaining spans. It blocks for at most two seconds: a collector may not answer."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            logger.warning("the last spans are lost: the collector takes none within %g s", _CLOSE_S)

    def _completion(self, facts: RequestFacts, record: StreamRecord, index: int, unix_ns: _UnixClock) -> None:
        """Make the span of a completion, from sending it to its last chunk, with its phases below it."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        completion = record.completions[index]
        attributes = _attributes(facts, record, index)
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {facts.served_model}",
            context=set_span_in_context(facts.span),
            kind=SpanKind.CLIENT,
            start_time=unix_ns(record.sent_s),
            attributes=attributes,
        )
        if completion.phases is not None:
            end_s = completion.last_s - record.sent_s
            self._phases(completion.phases, end_s, set_span_in_context(span), lambda s: unix_ns(record.sent_s + s))
        if completion.finish_reason is None and facts.error is not None:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", facts.error_code)
        span.end(unix_ns(time.monotonic() if completion.finish_reason is None else completion.last_s))

    def _phases(self, phases: Phases, end_s: float, context: Any, unix_ns: _UnixClock) -> None:
        """Make the spans of the stages. The first and the last include the way to Triton and back.

        Args:
            end_s: seconds from sending the completion to its last chunk. The clock counts from sending too.
        """
        start_s = 0.0
        for name, stage, seconds in (
            ("tokenization", "tokenizer", phases.tokenization_s),
            ("queue", "engine", phases.queue_s),
            ("prefill", "engine", phases.prefill_s),
            ("decode", "engine", phases.decode_s),
            ("detokenization", "detokenizer", max(0.0, end_s - phases.total_s)),
        ):
            begun = self._tracer.start_span(
                name, context=context, start_time=unix_ns(start_s), attributes={"conch.stage": stage}
            )
            start_s += seconds
            begun.end(unix_ns(start_s))


def _attributes(facts: RequestFacts, record: StreamRecord, index: int) -> dict[str, Any]:
    """Return a completion's attributes by the semantic conventions for generative AI, without its content."""
    completion = record.completions[index]
    request, usage = completion.request, completion.usage
    reason = completion.finish_reason or ("cancelled" if facts.error_code == CLIENT_CLOSED else "error")
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "text_completion" if facts.id.startswith("cmpl-") else "chat",
        "gen_ai.provider.name": "conch",
        "gen_ai.request.model": facts.model,
        "gen_ai.response.model": facts.served_model,
        "gen_ai.response.id": facts.id,
        "gen_ai.request.max_tokens": request.params.max_tokens,
        "gen_ai.request.temperature": request.params.sampling.temperature,
        "gen_ai.request.top_p": request.params.sampling.top_p,
        "gen_ai.response.finish_reasons": [str(reason)],
    }
    if record.num_per_prompt > 1:
        attributes["gen_ai.request.choice.count"] = record.num_per_prompt
    if usage is not None:
        attributes["gen_ai.usage.output_tokens"] = usage.num_output_tokens
        if index % record.num_per_prompt == 0:  # the completions of one prompt count it once
            attributes["gen_ai.usage.input_tokens"] = usage.num_input_tokens
    return attributes


def _unix_clock() -> _UnixClock:
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda monotonic_s: offset_ns + round(monotonic_s * 1e9)
