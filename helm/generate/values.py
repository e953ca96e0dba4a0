"""Writes values.yaml, files/defaults.json and the table of values in the README from values.schema.json.

The text, the default and the range of a value that is a setting of the frontend come from the setting's declaration,
which is written into the schema first.

python -m helm.generate.values
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from build_engines.tables import markdown_table
from frontend.settings import SETTINGS, Setting

CHART = Path(__file__).parents[1]
SCHEMA = CHART / "values.schema.json"
VALUES = CHART / "values.yaml"
DEFAULTS = CHART / "files" / "defaults.json"
README = CHART / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- values: begin -->", "<!-- values: end -->"

type Schema = dict[str, Any]

_INTRODUCTION = """\
# Values of the chart. Written by `python -m helm.generate.values` from values.schema.json; a test keeps them equal."""


def load_schema() -> Schema:
    """Return values.schema.json, with the declarations of the frontend's settings."""
    schema: Schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for setting in SETTINGS.values():
        if setting.chart_value:
            node = schema
            for name in setting.chart_value.split("."):
                node = node["properties"][name]
            node |= _declaration(setting)
    return schema


def _declaration(setting: Setting) -> Schema:
    default = setting.default if setting.chart_default is None else setting.chart_default
    node: Schema = {"description": setting.help, "default": int(default) if isinstance(default, float) else default}
    if setting.choices:
        node["enum"] = list(setting.choices)
    elif isinstance(setting.default, int):
        node |= {"minimum": setting.low, "maximum": setting.high}
    elif isinstance(setting.default, float):
        node["minimum" if setting.is_zero_allowed else "exclusiveMinimum"] = 0
    return node


def schema_text(schema: Schema) -> str:
    """Return values.schema.json."""
    return json.dumps(schema, indent=2) + "\n"


def values_text(schema: Schema) -> str:
    """Return values.yaml."""
    lines = [_INTRODUCTION]
    for name, node in schema["properties"].items():
        lines += ["", *_yaml_lines(name, node, schema, 0)]
    return "\n".join(lines) + "\n"


def defaults_text(schema: Schema) -> str:
    """Return defaults.json: the defaults by path, for templates, which cannot read values.yaml."""
    defaults = {path: node["default"] for path, node in leaves(schema) if "[]" not in path and "*" not in path}
    return "{\n" + ",\n".join(f"{json.dumps(path)}: {json.dumps(value)}" for path, value in defaults.items()) + "\n}\n"


def table_lines(schema: Schema) -> list[str]:
    """Return the README's table of values, one row for each leaf."""
    rows = [
        (f"`{path}`", f"`{json.dumps(node['default'])}`", node["description"])
        for path, node in leaves(schema)
        if not path.startswith("modelDefaults.")
    ]
    return list(markdown_table(("value", "default", "meaning"), rows))


def leaves(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield each value with its path; models are `models[]`, profiles `resourceProfiles.*`."""
    for name, node in schema["properties"].items():
        yield from _leaves(name, node, schema)


def _leaves(path: str, node: Schema, schema: Schema) -> Iterator[tuple[str, Schema]]:
    node = _resolved(node, schema)
    if "default" in node:
        yield path, node
    for nested_path, key in ((f"{path}[]", "items"), (f"{path}.*", "additionalProperties")):
        child = node.get(key)
        if isinstance(child, dict) and "$ref" in child:
            yield from _leaves(nested_path, child, schema)
            break  # models are a list or a map, of the same values
    if "default" not in node:
        for name, child in node.get("properties", {}).items():
            yield from _leaves(f"{path}.{name}", child, schema)


def _resolved(node: Schema, schema: Schema) -> Schema:
    """Return a node merged with its `$ref`, without the properties that it sets to `false`."""
    if "$ref" not in node:
        return node
    target = schema["$defs"][node["$ref"].rpartition("/")[2]]
    properties = {
        name: child
        for name, child in target.get("properties", {}).items()
        if node.get("properties", {}).get(name) is not False
    }
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}, "properties": properties}


def _yaml_lines(name: str, node: Schema, schema: Schema, depth: int) -> Iterator[str]:
    node, indent = _resolved(node, schema), "  " * depth
    yield from textwrap.wrap(
        node["description"],
        120,
        initial_indent=f"{indent}# -- ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
    )
    if "default" in node:
        text = yaml.safe_dump({name: node["default"]}, sort_keys=False, width=1000, allow_unicode=True)
        yield from textwrap.indent(text.rstrip("\n"), indent).splitlines()
        return
    yield f"{indent}{name}:"
    for child_name, child in node["properties"].items():
        yield from _yaml_lines(child_name, child, schema, depth + 1)


def readme_text(old: str, schema: Schema) -> str:
    """Return the README with its table replaced."""
    before, _, rest = old.partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    return "\n".join([before + TABLE_BEGIN, *table_lines(schema), TABLE_END]) + after


def main() -> None:
    """Write the files."""
    schema = load_schema()
    SCHEMA.write_text(schema_text(schema), encoding="utf-8")
    VALUES.write_text(values_text(schema), encoding="utf-8")
    DEFAULTS.write_text(defaults_text(schema), encoding="utf-8")
    README.write_text(readme_text(README.read_text(encoding="utf-8"), schema), encoding="utf-8")


if __name__ == "__main__":
    main()
