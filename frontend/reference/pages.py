"""The generated tables of docs/: request fields by runtime, tensors, metrics, settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frontend.options import default_text, explanation
from frontend.reference.parameters import Parameter, Treatment, parameters
from frontend.settings import GROUPS, SETTINGS, Settings, flag_of
from frontend.telemetry.definitions import METRICS
from model_repository.contract import tensors
from model_repository.contract.spec import MAX_INT32, TensorSpec
from model_repository.engine.metrics import DEVICE_FAMILIES, FAMILIES
from model_repository.model_parameters import API_SAMPLING
from model_repository.runtimes import RUNTIMES

_TABLE = re.compile(r"(<!-- table: ([a-z ]+) -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)
_KINDS = {"array": "list", "string": "text"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def filled(page: str, of_serve: Settings) -> str:
    """Return a page with new tables between their marks. Other text does not change.

    Args:
        page: Markdown. The marks of a table are `<!-- table: NAME -->` and `<!-- end of table -->`.
        of_serve: the defaults of `serve`.
    """
    tables: Mapping[str, Callable[[], Iterable[str]]] = {
        "fields": _fields,
        "sampling fields": lambda: [_code(API_SAMPLING)],
        "inputs": lambda: _table(
            ("tensor", "datatype", "shape", "range", "meaning"), map(_tensor_cells, tensors.HONOURED_INPUTS)
        ),
        "neutral inputs": lambda: _table(
            ("tensor", "datatype", "accepted", "meaning"), map(_neutral_cells, tensors.NEUTRAL_INPUTS)
        ),
        "outputs": lambda: _outputs(tensors.PUBLIC_OUTPUTS),
        "outputs of encoders": lambda: _outputs(
            spec for spec in tensors.VECTOR_OUTPUTS if spec not in tensors.PUBLIC_OUTPUTS
        ),
        "batches": lambda: _outputs((tensors.OPEN_STREAM, tensors.REQUEST_BATCH, tensors.CHUNK_BATCH)),
        "metrics of the frontend": lambda: _table(
            ("name", "type", "labels", "meaning", "vLLM's name"),
            ((f"`{each.name}`", each.kind, _code(each.labels), each.meaning, _code(each.vllm)) for each in METRICS),
        ),
        "metrics of the engine": lambda: _table(
            ("name", "type", "meaning"),
            (
                (f"`{each.name}`", "counter" if each.is_counter else "gauge", each.meaning)
                for each in (*FAMILIES, *DEVICE_FAMILIES)
            ),
        ),
        "settings": lambda: _settings(of_serve),
    }
    return _TABLE.sub(lambda found: f"{found[1]}{'\n'.join(tables[found[2]]()).strip()}{found[3]}", page)


def _fields() -> list[str]:
    lines = []
    for endpoint in dict.fromkeys(row.endpoint for row in parameters()):
        rows = [row for row in parameters() if row.endpoint == endpoint]
        unserved = (Treatment.REFUSED, Treatment.HINT)
        served = [row for row in rows if not any(_is_always(row, treatment) for treatment in unserved)]
        refused = [
            (f"`{row.name}`", _values(row.schema), f"`{row.instead}`" if row.instead else "")
            for row in rows
            if _is_always(row, Treatment.REFUSED)
        ]
        hints = [(f"`{row.name}`", _values(row.schema)) for row in rows if _is_always(row, Treatment.HINT)]
        lines += [
            f"## POST {endpoint}",
            "",
            *_table(("field", "values", *RUNTIMES, "meaning"), map(_cells, served)),
            "",
            "Refused by every runtime, unless:",
            "",
            *_table(("field", "values that change nothing", "use instead"), refused),
            "",
            "Hints without effect: accepted, and listed in `x-ignored-params`, unless:",
            "",
            *_table(("field", "values that change nothing"), hints),
            "",
        ]
    return lines


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


def _settings(of_serve: Settings) -> list[str]:
    columns = ("option", "default", "values", "meaning", "Helm value")
    lines = []
    for title, names in GROUPS.items():
        rows = (_setting_cells(name, of_serve) for name in names)
        lines += [f"## {title[0].upper()}{title[1:]}", "", *_table(columns, rows), ""]
    return lines


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


def _outputs(specs: Iterable[TensorSpec]) -> list[str]:
    rows = ((f"`{spec.name}`", spec.datatype, _shape(spec), spec.doc) for spec in specs)
    return _table(("tensor", "datatype", "shape", "meaning"), rows)


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape))}]"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
