"""OpenTelemetry spans of requests, made when a request has ended: while it streams, nothing is done for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from frontend.handlers.context import CLIENT_CLOSED, RequestFacts
from frontend.settings import SettingsError
from frontend.telemetry.stream_record import Completion, StreamRecord


def open_tracer(endpoint: str) -> RequestTracer | None:
    """Return what posts spans to an endpoint, None where there is none.

    Raises:
        SettingsError: the packages for it are not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as exc:
        rule = "needs the packages of the extra `traces` (pip install 'conch[traces]')"
        raise SettingsError(f"otlp_endpoint={endpoint!r}: {rule}") from exc
    return RequestTracer(OTLPSpanExporter(endpoint=endpoint))


class RequestTracer:
    """Makes the spans of requests, and exports them from a thread of its own.

    The SDK reads the other OTEL_* variables: service name, sampler, headers, batches.

    Args:
        exporter: where they go.
    """

    def __init__(self, exporter: Any) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource({SERVICE_NAME: "conch"}).merge(Resource.create())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("conch", version("conch"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        """Open the span of a request, below that of its caller if it names one (W3C trace context)."""
        from opentelemetry.trace import SpanKind

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            "HTTP",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=_unix_ns(facts.started_at),
        )
        facts.span = span
        facts.trace_id = f"{span.get_span_context().trace_id:032x}"

    def end(self, facts: RequestFacts, *, method: str, endpoint: str, status: int) -> None:
        """Close the span of a request, with those of its completions' phases below it."""
        from opentelemetry.trace import StatusCode, set_span_in_context

        span = facts.span
        span.update_name(f"{method} {endpoint}")
        span.set_attributes(
            {
                "http.request.method": method,
                "http.route": endpoint,
                "http.response.status_code": status,
                "conch.request_id": facts.request_id,
            }
        )
        if facts.error is not None and (facts.error.status >= 500 or status == 200):
            span.set_status(StatusCode.ERROR)
        if facts.error_code is not None:
            span.set_attribute("error.type", facts.error_code)
        if facts.stream is not None:
            span.set_attributes(_generation_attributes(facts, facts.stream))
            context = set_span_in_context(span)
            if span.is_recording():
                for completion in facts.stream.completions:
                    self._phases(completion, facts.stream, context)
        span.end()

    def close(self) -> None:
        """Send what was not sent yet. It may block."""
        self._provider.shutdown()

    def _phases(self, completion: Completion, record: StreamRecord, context: Any) -> None:
        """Make the spans of a completion's phases, one after the other from when it was sent to Triton."""
        phases = completion.phases
        if phases is None:
            return
        start_ns = _unix_ns(record.sent_s)
        for name, seconds in (
            ("tokenization", phases.tokenization_s),
            ("queue", phases.queue_s),
            ("prefill", phases.prefill_s),
            ("decode", phases.decode_s),
        ):
            end_ns = start_ns + round(seconds * 1e9)
            self._tracer.start_span(name, context=context, start_time=start_ns).end(end_ns)
            start_ns = end_ns


def _generation_attributes(facts: RequestFacts, record: StreamRecord) -> dict[str, Any]:
    """Return the attributes of the semantic conventions for generative AI. What was said is not among them."""
    request = record.completions[0].request
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if facts.id.startswith("chatcmpl-") else "text_completion",
        "gen_ai.provider.name": "conch",
        "gen_ai.request.model": facts.model,
        "gen_ai.response.model": facts.served_model,
        "gen_ai.response.id": facts.id,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.usage.input_tokens": facts.num_input_tokens,
        "gen_ai.usage.output_tokens": facts.num_output_tokens,
    }
    if record.num_per_prompt > 1:
        attributes["gen_ai.request.choice.count"] = record.num_per_prompt
    cancelled = facts.error_code == CLIENT_CLOSED
    reasons = [each.finish_reason or ("cancelled" if cancelled else "error") for each in record.completions]
    return attributes | {"gen_ai.response.finish_reasons": [str(reason) for reason in reasons]}


def _unix_ns(monotonic_s: float) -> int:
    return time.time_ns() - round((time.monotonic() - monotonic_s) * 1e9)
