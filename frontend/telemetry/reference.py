"""The page of docs/ that lists the metrics, written from their definitions."""

from __future__ import annotations

from frontend.telemetry.definitions import METRICS, UNKNOWN
from model_repository.engine.metrics import FAMILIES

_TEXT = f"""\
# Metrics

{{written}}

`GET /metrics` is for Prometheus, on the frontend's operations port (`--admin-port`); without one, and without API keys,
on the API's own. With several workers each one answers for all of them. A label
`model` is the id of a served model, whatever alias or adapter the client named; everything else is `{UNKNOWN}`, so that
clients cannot make labels. The label `triton` is the endpoint that an engine was asked at, as `--triton` names it.
Keys are counted by name with `--metrics-by-key` only. Times are in seconds.

With `--metrics-compat vllm` the metrics that vLLM has come under its names too, with its labels `model_name` and
`engine` (always `0`), and `finished_reason` (`cancelled` is `abort` there); dashboards and autoscalers for vLLM read
those.

`operations/grafana-dashboard.json` and `operations/prometheus-rules.yaml` use what is listed here, and nothing else.

## The frontend's

| name | type | labels | meaning | vLLM's name |
| --- | --- | --- | --- | --- |
{{frontend}}

## The engine's, on Triton's metrics port

Each engine stage tells Triton once a second; the label `model` is the model's id. Counters begin
anew when it is loaded.

| name | type | meaning |
| --- | --- | --- |
{{engine}}

## Logs and traces

`--log-format json` writes each line as an object. A request is one line, with `"event": "request"`: its ids, sizes,
phases in milliseconds and outcome, never a prompt, a completion or a key. Its `request_id` (the caller's
`x-request-id`, or a new one) is in the lines of the stages in tritonserver's log too, since it travels with
the request: the engine says with one line how each sequence ended. For a gRPC client it is Triton's request id.

With `--otlp-endpoint URL`, or OpenTelemetry's own `OTEL_EXPORTER_OTLP_ENDPOINT`, each request is a span, below its
caller's if there is a `traceparent`. Below it is a span for each completion, with the attributes of the semantic
conventions for generative AI, without content; below that are tokenization, queue, prefill, decode and detokenization,
with the stage in `conch.stage`. It needs the extra `traces`. The other `OTEL_*` variables count too.
All requests to a model share one call to Triton, so its metadata cannot carry a context for each of them: the spans of
queue, prefill and decode come from the engine's own times, and the other two also hold the way to Triton and back.

An answer that does not stream has the same phases in its header `Server-Timing`.
"""


def metrics_page(written: str) -> str:
    """Return the page.

    Args:
        written: the sentence that says where it comes from.
    """
    frontend = (
        f"| `{metric.name}` | {metric.kind} | {_code(metric.labels)} | {metric.meaning} | {_code(metric.vllm)} |"
        for metric in METRICS
    )
    engine = (
        f"| `{family.name}` | {'counter' if family.is_counter else 'gauge'} | {family.meaning} |" for family in FAMILIES
    )
    return _TEXT.format(written=written, frontend="\n".join(frontend), engine="\n".join(engine))


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
