"""The values: checked by the schema, explained in values.yaml and the README."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from helm.generate import values as generated
from tests.helm.cases import CASES, SHAPES, values_of, with_named_secrets
from tests.helm.chart import CHART, default_values, metadata, pods, refusal, render, schema
from tests.helm.validation import KUBERNETES_VERSIONS, errors

PROJECT = CHART.parent


@pytest.mark.parametrize("name", SHAPES)
def test_strict_lint_finds_nothing(name: str) -> None:
    report = helm_python.lint(CHART, CASES[name], strict=True)
    assert report == {"total_charts_linted": 1, "messages": [], "errors": []}


def test_the_chart_has_its_metadata() -> None:
    found = metadata()
    assert found["icon"]
    assert f'version = "{found["appVersion"]}"' in (PROJECT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_rendered_objects_are_valid(name: str) -> None:
    rendered = render(CASES[name])
    versions = KUBERNETES_VERSIONS if name in ("default-values", "scaled-values") else KUBERNETES_VERSIONS[::8]
    for version in versions if name in SHAPES else versions[-1:]:
        assert errors(rendered, version) == []


def test_the_validation_sees_a_field_that_does_not_exist() -> None:
    for name, kind in (("default", "Deployment"), ("nodes", "LeaderWorkerSet"), ("scaled", "ScaledObject")):
        rendered = render(values_of(name))
        rendered.of_kind(kind)[0]["spec"]["replica"] = 1
        [line] = errors(rendered, "1.37")
        assert "replica" in line


def test_an_unknown_key_is_refused_at_every_level() -> None:
    paths = set(_object_paths(default_values(), schema())) - {("global",)}  # a parent chart may have more there
    assert len(paths) > 40
    for path in paths:
        values = _nested(path, {"unknownKey": 1})
        assert "unknownKey" in refusal(values), path


def test_an_unknown_key_of_a_model_is_refused() -> None:
    for path in _object_paths(default_values()["modelDefaults"], schema()["$defs"]["model"]):
        model = {"name": "demo", **_nested(path, {"unknownKey": 1})}
        assert "unknownKey" in refusal({"models": [model]}), path


def test_the_schema_values_yaml_and_the_readme_are_as_they_are_generated() -> None:
    expected = generated.load_schema()
    assert schema() == expected, _HOW
    assert generated.VALUES.read_text(encoding="utf-8") == generated.values_text(expected), _HOW
    assert generated.DEFAULTS.read_text(encoding="utf-8") == generated.defaults_text(expected), _HOW
    readme = generated.README.read_text(encoding="utf-8")
    assert readme == generated.readme_text(readme, expected), _HOW


def test_every_value_is_explained() -> None:
    leaves = dict(generated.leaves(schema()))
    assert len(leaves) > 150
    for path, node in leaves.items():
        assert node["description"].endswith("."), path


@pytest.mark.parametrize("depth", range(1, 5))
def test_a_value_or_a_section_without_a_value_has_its_default(depth: int) -> None:
    """An emptied line, such as `networkPolicy.enabled:`, rendered another chart, or was a trace of Go."""
    others = {"metrics": {}, "resourceProfiles": {}, "models": [{"name": "demo", "replicas": 2}]}
    base = with_named_secrets({"frontend": {"auth": {"existingSecret": "keys"}, "ingress": {"enabled": True}}} | others)
    values = copy.deepcopy(base)
    emptied = [path for path in _paths(schema()) if len(path) == depth and not _is_in(path, base)]
    for path in emptied:
        node = values
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = None
    assert emptied
    assert render(values) == render(base)


def test_null_removes_an_entry_inside_an_object_of_kubernetes() -> None:
    """A cluster of OpenShift sets the user of pods itself."""
    rendered = render({"podSecurityContext": {"runAsUser": None}, "frontend": {"resources": {"limits": None}}})
    for pod in pods(rendered):
        assert "runAsUser" not in pod.spec["securityContext"]
        assert pod.spec["securityContext"]["runAsNonRoot"]
    [frontend] = [pod for pod in pods(rendered) if pod.owner == "Deployment/demo-frontend"]
    assert set(frontend.main["resources"]) == {"requests"}


_HOW = "run `python -m helm.generate.values`"


def _object_paths(
    values: dict[str, Any], node: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the path of every object whose keys the schema names."""
    node = schema()["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    if "x-kubernetes" in node or "properties" not in node:
        return
    yield path
    for name, child in node["properties"].items():
        if isinstance(values.get(name), dict):
            yield from _object_paths(values[name], child, (*path, name))


def _paths(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every value and section."""
    for name, child in node.get("properties", {}).items():
        child = generated._resolved(child, schema())
        yield (*path, name)
        if "default" not in child:
            yield from _paths(child, (*path, name))


def _is_in(path: tuple[str, ...], values: Any) -> bool:
    """Whether the values have one at this path."""
    return not path or (isinstance(values, dict) and path[0] in values and _is_in(path[1:], values[path[0]]))


def _nested(path: tuple[str, ...], value: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: copy.deepcopy(value)}
    return value
