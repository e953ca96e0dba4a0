"""The generated pages of docs/: request fields by runtime, tensors, metrics, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frontend.options import default_text, explanation
from frontend.reference.parameters import Parameter, Treatment, parameters
from frontend.settings import GROUPS, SETTINGS, Settings, flag_of
from frontend.telemetry.definitions import METRICS, UNKNOWN
from model_repository.contract import tensors
from model_repository.contract.spec import MAX_INT32, TensorSpec
from model_repository.engine.metrics import FAMILIES
from model_repository.errors import OutputStreamNotOpen
from model_repository.model_parameters import API_SAMPLING
from model_repository.runtimes import RUNTIMES

_WRITTEN = "Written by `.venv/bin/conch reference docs`; a test keeps it equal to the code."

_METRICS_TEXT = f"""\
# Metrics

{_WRITTEN}

Prometheus reads `GET /metrics` on the frontend's operations port (`--admin-port`). Without that port and without API
keys it is on the API's port. Each worker answers for all workers. The label `model` is the id of a served model, also
for requests that name an alias or an adapter. For other models it is `{UNKNOWN}`, so that clients cannot create labels.
The label `triton` is the endpoint of an engine, as in `--triton`, with `@2` for the second replica there. Times are in
seconds.

With `--metrics-compat vllm` the metrics that vLLM has are also exported under its names, with its labels `model_name`,
`engine` (always `0`) and `finished_reason` (`abort` for `cancelled`), for dashboards and autoscalers of vLLM.

[A Grafana dashboard](../helm/files/grafana-dashboard.json) and [alerts](../helm/files/prometheus-rules.yaml) use these
metrics.

## The frontend's

| name | type | labels | meaning | vLLM's name |
| --- | --- | --- | --- | --- |
{{frontend}}

## The engine's, on Triton's metrics port

Each engine stage updates them once a second. The label `model` is the id of the model, and `replica` the number of its
engine in this Triton, from `1`. Counters start at zero when the model is loaded.

| name | type | meaning |
| --- | --- | --- |
{{engine}}

## Logs and traces

`--log-format json` writes each line as an object, also that of a wrong option, which ends the command. A request is one
line, with `"event": "request"`: its ids, sizes, phases in milliseconds and outcome, never a prompt, a completion or a
key. On a terminal, `serve` writes the log to `serve.log`, and `--verbose` prints it; warnings and errors are in both
places. A chat's line costs 15 us of CPU in the frontend (22 us as JSON) and 6 us in `serve`. The `request_id` (the
caller's `x-request-id`, or a new one) is also in the stages' lines about a refusal or a failure. The engine writes the
line of a gRPC client's request, with Triton's request id. Each line has its time, in UTC.

With `--otlp-endpoint URL`, or OpenTelemetry's `OTEL_EXPORTER_OTLP_ENDPOINT`, each request is a span, below the caller's
if there is a `traceparent`. Below it is a span for each completion, with the attributes of the semantic conventions for
generative AI, without content. Below that are tokenization, queue, prefill, decode and detokenization, with the stage
in `conch.stage`. Queue, prefill and decode are the engine's own times; the other two include the way to Triton and
back. Traces need the extra `traces`. The other `OTEL_*` variables have their effect too.

An answer without streaming has the same phases in its header `Server-Timing`.
"""

_KINDS = {"array": "list", "string": "text"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def pages(of_serve: Settings) -> dict[str, str]:
    """Return the pages by file name.

    Args:
        of_serve: the defaults of `serve`.
    """
    return {
        "parameters.md": _parameters_page(),
        "tensors.md": _tensors_page(),
        "metrics.md": _metrics_page(),
        "settings.md": _settings_page(of_serve),
    }


def _parameters_page() -> str:
    lines = [
        "# Request fields",
        "",
        "The treatment of each field by each runtime. " + _WRITTEN,
        "",
        "- *enforced*: the field works; a value outside its range is refused with 400.",
        "- *emulated*: the field works, by several requests to the ensemble.",
        "- *logged*: bookkeeping; the field changes no answer and goes to the log.",
        "- *refused*: 400 with the field's name, unless its value changes nothing.",
        "- *hint*: listed in `x-ignored-params` if the model does not follow it. TensorRT-LLM's engines follow",
        "  `seed`, its PyTorch backend does not.",
        "",
        "`null` is the same as absent. The header `x-ignored-params` of the answer lists ignored parts of the request:",
        "unknown fields, hints, variables and names that the chat template does not read, and keywords of JSON schemas",
        "that are unknown or cannot be enforced, each with its place, such as",
        "`tools[0].function.parameters.properties.tags.uniqueItems`; `--strict-extra` refuses them.",
        "`/openapi.json` has the same table, as `x-runtimes` of each property.",
        "",
        f"{', '.join(f'`{name}`' for name in API_SAMPLING)}:",
        "without one of these fields the model's default holds: that of `build --default`, else that of the model's",
        "author (`generation_config.json`, or `general.sampling.*` in a GGUF file), else that of OpenAI's document,",
        "which does not change the distribution. `/v1/models` shows these defaults as `default_parameters`. `build",
        "--default sampling=openai` turns those of the author off. gRPC requests have no such defaults.",
        "",
        "With `strict: true` a JSON schema is enforced completely: a keyword that cannot be enforced is refused with",
        "400, its path and the rule. Without it, as in `json_object` with a `schema` and in `structured_outputs`, the",
        "other keywords are enforced ([the keywords](api.md#structured-output)); a `oneOf` with alternatives that look",
        "the same is enforced as `anyOf`. Patterns follow ECMA-262 with its `u` flag. A `regex`, a `choice` and a",
        "`grammar` are enforced exactly, or refused.",
        "",
    ]
    for endpoint in dict.fromkeys(row.endpoint for row in parameters()):
        rows = [row for row in parameters() if row.endpoint == endpoint]
        unserved = (Treatment.REFUSED, Treatment.HINT)
        served = [row for row in rows if not any(_is_always(row, treatment) for treatment in unserved)]
        lines += [
            f"## POST {endpoint}",
            "",
            *_table(("field", "values", *RUNTIMES, "meaning"), map(_cells, served)),
            "",
        ]
        refused = [
            (f"`{row.name}`", _values(row.schema), f"`{row.instead}`" if row.instead else "")
            for row in rows
            if _is_always(row, Treatment.REFUSED)
        ]
        hints = [(f"`{row.name}`", _values(row.schema)) for row in rows if _is_always(row, Treatment.HINT)]
        lines += [
            "Refused by every runtime, unless:",
            "",
            *_table(("field", "values that change nothing", "use instead"), refused),
            "",
            "Hints without effect: accepted, and listed in `x-ignored-params`, unless:",
            "",
            *_table(("field", "values that change nothing"), hints),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _is_always(row: Parameter, treatment: Treatment) -> bool:
    return set(row.treatments.values()) == {treatment}


def _cells(row: Parameter) -> Sequence[str]:
    return (f"`{row.name}`", _values(row.schema), *(row.treatments[name] for name in RUNTIMES), row.description)


def _values(schema: Mapping[str, Any]) -> str:
    """Return a short form of a JSON schema."""
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_values(each) for each in schema["anyOf"] if each.get("type") != "null")
        return " or ".join(kinds)
    kind = _KINDS.get(schema.get("type", ""), schema.get("type", ""))
    if kind == "list":
        inner = _values(schema["items"])
        return f"list of {inner}" if inner else kind
    bounds = [
        f"{sign} {schema[word]}" for word, sign in _BOUNDS.items() if word in schema and schema[word] != MAX_INT32
    ]
    return " ".join([kind, ", ".join(bounds)]).strip()


def _tensors_page() -> str:
    header = ("tensor", "datatype", "shape", "range", "meaning")
    lines = [
        "# The ensemble's tensors",
        "",
        "For gRPC clients. " + _WRITTEN,
        "",
        "A model's Triton name is its id with `--` for `/`. The ensemble is decoupled: call it with",
        "`ModelStreamInfer`; without `stream` there is one response. Shapes are without the batch dimension, which is",
        "always 1: send `[1, *shape]`. `-1` is any length. Every input is optional, but exactly one of `text_input`,",
        "`messages`, `input_ids` and `text_pair` must be there. A value that breaks a rule is answered with an error",
        "message that names tensor, value and rule. Do not send the metadata `triton_grpc_error: true`, which requests",
        "a status instead: after some hundred errors it ends Triton 2.51 with a segmentation fault. Further replicas",
        "of a model in one Triton have their number behind the name, as in `MODEL@2`: a client chooses one.",
        "",
        "Shared memory, loading of models and the settings of traces and logs need Triton's key. Triton's HTTP port,",
        "with its `generate` endpoint, is closed by default. [security.md](security.md#tritons-key) explains how to",
        "open both.",
        "",
        "Always set a deadline: a client without one waits for ever when an engine is lost.",
        "",
        "## Inputs",
        "",
        *_table(header, map(_tensor_cells, tensors.HONOURED_INPUTS)),
        "",
        "Declared for clients of NVIDIA's ensemble; only the values that change nothing are accepted:",
        "",
        *_table(("tensor", "datatype", "accepted", "meaning"), map(_neutral_cells, tensors.NEUTRAL_INPUTS)),
        "",
        "## Outputs",
        "",
        "A response has only the outputs with a value.",
        "",
        *_table(("tensor", "datatype", "shape", "meaning"), map(_output_cells, tensors.PUBLIC_OUTPUTS)),
        "",
        "A model that embeds or scores has one response. Beside this output, it has `input_token_ids`, the numbers of",
        "tokens and the times of the table above:",
        "",
        *_table(
            ("tensor", "datatype", "shape", "meaning"),
            (_output_cells(spec) for spec in tensors.VECTOR_OUTPUTS if spec not in tensors.PUBLIC_OUTPUTS),
        ),
        "",
        "## Many requests in one call",
        "",
        "A response costs about the same whether it carries the tokens of one sequence or of hundreds, so a frontend",
        "opens one *output stream* for each model and sends its requests in batches. The messages are MessagePack of",
        "the classes named below, in `model_repository/contract/`: an object by field names, a class with `array_like`",
        "as an array. Any client may use it:",
        "",
        f"1. Call the ensemble `MODEL__{tensors.OUTPUTS}` with `{tensors.OPEN_STREAM.name}`, and read on. The first",
        f"   batch is empty and says that the stream is open. A model that embeds or scores has `MODEL__"
        f"{tensors.ENCODER.outputs}` instead.",
        f"2. Call `MODEL__{tensors.REQUESTS}` with `{tensors.REQUEST_BATCH.name}`: the stream's key, and requests",
        "   under numbers of your own. The call ends without a response, or with an error of the whole batch.",
        "3. The outputs come on the stream, with those numbers. A text instead of a chunk is the error of a request;",
        "   a chunk without text confirms that the engine has the request. Vectors are in `vectors`.",
        "",
        "One gRPC call can carry all of it: an error has the `id` of its message, and an opening with the parameter",
        "`triton_enable_empty_final_response` is answered when the stream ends, with the parameter",
        "`triton_final_response`, by an empty response or by the last batch. When a stream ends, its requests are",
        "cancelled. Without requests it ends after some seconds; a late request gets the error",
        f"`[{OutputStreamNotOpen.code}]`: open another stream with a new key, and send the request again.",
        "A batch without requests, every few seconds, keeps a stream open while requests wait in the tokenizer for",
        "their grammars or behind large prompts. Also open another stream after some thousand batches, or some",
        "hundred errors: Triton keeps two kilobytes of each batch until the stream ends, and fifteen of each error",
        "until the call ends. The key is a secret between client and server, like a `cancel_key`.",
        "",
        *_table(
            ("tensor", "datatype", "shape", "meaning"),
            map(_output_cells, (tensors.OPEN_STREAM, tensors.REQUEST_BATCH, tensors.CHUNK_BATCH)),
        ),
    ]
    return "\n".join(lines) + "\n"


_SETTING_COLUMNS = ("option", "default", "values", "meaning", "Helm value")


def _settings_page(of_serve: Settings) -> str:
    lines = [
        "# Settings",
        "",
        "Options that `.venv/bin/conch serve` and `conch api` have in common; only `api` has `--triton`, since `serve`",
        "starts a Triton. `serve --help` lists the options of `serve` alone.",
        _WRITTEN,
        "",
        "The last column is the value of the Helm chart that sets the option; a default of the chart is in brackets.",
        "",
    ]
    for title, names in GROUPS.items():
        rows = (_setting_cells(name, of_serve) for name in names)
        lines += [f"## {title[0].upper()}{title[1:]}", "", *_table(_SETTING_COLUMNS, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _setting_cells(name: str, of_serve: Settings) -> Sequence[str]:
    setting = SETTINGS[name]
    default = default_text(setting.default)
    other = getattr(of_serve, name)
    note = "" if other == setting.default else f"; `serve`: `{other}`"
    own = "" if setting.chart_default is None else f" ({setting.chart_default})"
    return (
        f"`{flag_of(name)}`" if setting.flag is not None else f"variable `{setting.variable}`",
        f"`{default}`{note}" if default else "",
        setting.values,
        explanation(setting),
        f"`{setting.chart_value}`{own}" if setting.chart_value else "",
    )


def _tensor_cells(spec: TensorSpec) -> Sequence[str]:
    low = "" if spec.low is None else f"{'>' if spec.is_low_open else '≥'} {spec.low:g}"
    high = "" if spec.high is None else f"≤ {spec.high:g}"
    return f"`{spec.name}`", spec.datatype, _shape(spec), ", ".join(filter(None, (low, high))), spec.doc


def _neutral_cells(spec: TensorSpec) -> Sequence[str]:
    values = [value.decode() if isinstance(value, bytes) else value for value in spec.neutral or ()]
    return f"`{spec.name}`", spec.datatype, ", ".join(f"`{json.dumps(value)}`" for value in values), spec.doc


def _output_cells(spec: TensorSpec) -> Sequence[str]:
    return f"`{spec.name}`", spec.datatype, _shape(spec), spec.doc


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape))}]"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _metrics_page() -> str:
    frontend = (
        f"| `{metric.name}` | {metric.kind} | {_code(metric.labels)} | {metric.meaning} | {_code(metric.vllm)} |"
        for metric in METRICS
    )
    engine = (
        f"| `{family.name}` | {'counter' if family.is_counter else 'gauge'} | {family.meaning} |" for family in FAMILIES
    )
    return _METRICS_TEXT.format(frontend="\n".join(frontend), engine="\n".join(engine))


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
