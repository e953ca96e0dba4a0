"""Writes docs/metrics.md from the definitions of the metrics."""

from __future__ import annotations

from frontend.telemetry.definitions import METRICS, UNKNOWN
from model_repository.engine.metrics import FAMILIES

_TEXT = f"""\
# Metrics

{{written}}

`GET /metrics` is for Prometheus, on the frontend's operations port (`--admin-port`); without that port and without API
keys, on the API's port. Each of several workers answers for all. The label `model` is the id of a served model, also
for requests that name an alias or an adapter, and `{UNKNOWN}` for other models, so that clients cannot create labels.
The label `triton` is the endpoint of an engine, as in `--triton`. Times are in seconds.

With `--metrics-compat vllm` the metrics that vLLM has are also exported under its names, with its labels `model_name`,
`engine` (always `0`) and `finished_reason` (`abort` for `cancelled`), for dashboards and autoscalers of vLLM.

[A Grafana dashboard](../helm/files/grafana-dashboard.json) and [alerts](../helm/files/prometheus-rules.yaml) use these
metrics.

## The frontend's

| name | type | labels | meaning | vLLM's name |
| --- | --- | --- | --- | --- |
{{frontend}}

## The engine's, on Triton's metrics port

Each engine stage updates them once a second. The label `model` is the id of the model. Counters start at zero when the
model is loaded.

| name | type | meaning |
| --- | --- | --- |
{{engine}}

## Logs and traces

`--log-format json` writes each line as an object. A request is one line, with `"event": "request"`: its ids, sizes,
phases in milliseconds and outcome, never a prompt, a completion or a key. `serve` leaves these lines out where its log
is a terminal; `serve 2>&1 | cat` shows them. The `request_id` (the caller's `x-request-id`, or a new one) is also in
the stages' lines about a refusal or a failure. The engine writes the line of a gRPC client's request, with Triton's
request id.

With `--otlp-endpoint URL`, or OpenTelemetry's `OTEL_EXPORTER_OTLP_ENDPOINT`, each request is a span, below the caller's
if there is a `traceparent`. Below it is a span for each completion, with the attributes of the semantic conventions for
generative AI, without content. Below that are tokenization, queue, prefill, decode and detokenization, with the stage
in `conch.stage`. Queue, prefill and decode are the engine's own times; the other two include the way to Triton and
back. Traces need the extra `traces`. The other `OTEL_*` variables have their effect too.

An answer without streaming has the same phases in its header `Server-Timing`.
"""


def metrics_page(written: str) -> str:
    """Return the page.

    Args:
        written: the sentence about the page's source.
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
