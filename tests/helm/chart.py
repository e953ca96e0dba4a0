"""The chart as tests see it: values in, the objects that Helm would send to a cluster out."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[2] / "helm"
RELEASE = "demo"
NAMESPACE = "serving"

type Values = dict[str, Any]
type KubernetesObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one set of values renders to."""

    objects: tuple[KubernetesObject, ...]
    notes: str

    def of_kind(self, kind: str) -> list[KubernetesObject]:
        """Return the objects of a kind, in the order of the files."""
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> KubernetesObject:
        """Return the object of this kind and name."""
        [found] = [each for each in self.of_kind(kind) if each["metadata"]["name"] == name]
        return found

    def names(self) -> list[tuple[str, str]]:
        """Return kind and name of every object."""
        return [(each["kind"], each["metadata"]["name"]) for each in self.objects]


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod that some object makes."""

    owner: str  # Kind/name
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All of them, those that initialize first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def main(self) -> dict[str, Any]:
        """The one that the pod is named for: of a model's pod with the frontend, the one with Triton."""
        container: dict[str, Any] = self.spec["containers"][0]
        return container


class _StrictLoader(yaml.CSafeLoader):  # type: ignore[misc]
    """Refuses a key that is there twice: a cluster refuses it, or takes either."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise AssertionError(f"a key is there twice:\n{node.start_mark}: {sorted(mapping)}")
        return mapping


@functools.cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def default_values() -> Values:
    """Return what values.yaml says."""
    return _chart().values


def schema() -> dict[str, Any]:
    """Return values.schema.json."""
    found = _chart().schema
    assert found is not None
    return found


def metadata() -> dict[str, Any]:
    """Return Chart.yaml."""
    return _chart().metadata


def render(values: Values | None = None, *, release: str = RELEASE, is_upgrade: bool = False) -> Rendered:
    """Check values against the schema, and render the templates with them, as `helm install` does.

    Raises:
        helm_python.HelmError: the schema or a template refuses them.
    """
    files = _files(json.dumps(values or {}), release, is_upgrade)
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return Rendered(tuple(each for text in texts for each in yaml.load_all(text, _StrictLoader) if each), notes)


@functools.cache
def _files(values: str, release: str, is_upgrade: bool) -> dict[str, str]:
    _chart().validate_schema(json.loads(values))
    files: dict[str, str] = _chart().render(
        json.loads(values), name=release, namespace=NAMESPACE, is_upgrade=is_upgrade
    )
    return files


def refusal(values: Values, *, release: str = RELEASE) -> str:
    """Return what is said of values that must be refused."""
    try:
        render(values, release=release)
    except helm_python.HelmError as exc:
        return str(exc)
    raise AssertionError(f"these values were accepted: {values}")


def pods(rendered: Rendered) -> list[PodTemplate]:
    """Return every pod that the objects make."""
    return [pod for each in rendered.objects for pod in pods_of(each)]


def pods_of(each: KubernetesObject) -> Iterator[PodTemplate]:
    """Yield every pod that an object makes."""
    owner = f"{each['kind']}/{each['metadata']['name']}"
    if each["kind"] == "Pod":
        yield _pod(owner, each)
    elif each["kind"] == "Deployment":
        yield _pod(owner, each["spec"]["template"])
    elif each["kind"] == "LeaderWorkerSet":
        template = each["spec"]["leaderWorkerTemplate"]
        yield _pod(f"{owner}/leader", template["leaderTemplate"])
        yield _pod(f"{owner}/worker", template["workerTemplate"])


def _pod(owner: str, template: dict[str, Any]) -> PodTemplate:
    found = template.get("metadata", {})
    return PodTemplate(owner, found.get("labels", {}), found.get("annotations", {}), template["spec"])
