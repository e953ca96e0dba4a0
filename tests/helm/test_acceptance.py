"""What an API server checks beyond the schemas: names, labels, and what must be there once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import helm_python
import pytest
import yaml

from tests.helm.cases import CASES, SHAPES, values_of, with_demo, with_gpu_model
from tests.helm.chart import CHART, metadata, pods, refusal, render
from tests.helm.validation import errors

LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
PORT = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")

RELEASES = ("r" * 53, "a.b")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", SHAPES)
def test_names_and_labels_are_ones_that_may_be(name: str, release: str) -> None:
    rendered = render(CASES[name], release=release)
    for each in rendered.objects:
        found = each["metadata"]["name"]
        assert (SERVICE if each["kind"] == "Service" else SUBDOMAIN).fullmatch(found), found
        assert_labels(each["metadata"].get("labels", {}))
        assert all(isinstance(value, str) for value in each["metadata"].get("annotations", {}).values())
    for pod in pods(rendered):
        assert_labels(pod.labels)


@pytest.mark.parametrize("word", ["true", "null", "y"])
def test_names_that_yaml_takes_for_something_else_stay_words(word: str) -> None:
    rendered = render({"models": [{"name": word, "servedName": "demo"}]}, release=word)
    for labels in (*(each["metadata"]["labels"] for each in rendered.objects), *(pod.labels for pod in pods(rendered))):
        assert labels["app.kubernetes.io/instance"] == word
        assert labels.get("conch/model") in (None, word)
        assert_labels(labels)


def test_names_of_others_objects_stay_words_too() -> None:
    secret = {"existingSecret": "1"}
    for name in ("cpu", "gpu", "nodes", "scaled", "plain"):
        values = values_of(name)
        values["global"] = {"imagePullSecrets": ["1"]}
        values["huggingface"] = {**secret, "key": "1"}
        values["serviceAccount"] = {"name": "1"}
        values["tests"] = {"apiKey": secret}
        frontend = values.setdefault("frontend", {})
        frontend |= {"priorityClassName": "1", "auth": secret, "tls": secret, "redis": {**secret, "key": "1"}}
        frontend["ingress"] = {"enabled": True, "className": "1", "tlsSecret": "1"}
        if name == "nodes":
            values["multinode"]["sshKeySecret"] = "1"
        if name == "gpu":
            values["cache"]["storageClassName"] = "1"
        for model in values["models"]:
            model |= {"priorityClassName": "1", "runtimeClassName": "1"}
            model["source"] = {**model.get("source", {})}
            if model["source"].get("existingClaim"):
                model["source"]["existingClaim"] = "1"
        assert errors(render(values), "1.37") == []


@pytest.mark.parametrize("name", SHAPES)
def test_the_name_of_a_group_is_left_to_the_service_that_its_controller_makes(name: str) -> None:
    """Its pods are found by that Service only; the controller takes one that is there already for its own."""
    rendered = render(CASES[name])
    services = {each["metadata"]["name"] for each in rendered.of_kind("Service")}
    assert not services & {each["metadata"]["name"] for each in rendered.of_kind("LeaderWorkerSet")}


def test_an_existing_part_of_a_pod_cannot_be_added() -> None:
    variables, paths, volumes, containers = set[str](), set[str](), set[str](), set[str]()
    for name in SHAPES:
        mine = CASES[name].get("multinode", {}).get("env", {})
        for pod in pods(render(CASES[name])):
            of_user = {each["name"] for each in CASES[name].get("frontend", {}).get("extraContainers", [])}
            containers |= {each["name"] for each in pod.containers} - of_user - {"test"}
            for container in pod.containers:
                variables |= {each["name"] for each in container["env"]} - set(mine)
                paths |= {mount["mountPath"] for mount in container["volumeMounts"]}
            volumes |= {each["name"] for each in pod.spec["volumes"]} if not pod.owner.startswith("Pod/") else set()
    added = [{"extraEnv": [{"name": name}]} for name in variables]
    added += [{"extraVolumeMounts": [{"name": "x", "mountPath": path}]} for path in paths]
    added += [{"extraVolumes": [{"name": name}]} for name in volumes]
    for field in ("extraContainers", "extraInitContainers"):
        added += [{field: [{"name": name}]} for name in containers]
    for settings in added:
        assert "is the chart's own" in refusal(with_demo(**settings)), settings


def test_a_variable_of_all_ranks_cannot_be_added_again() -> None:
    values = values_of("nodes")
    values["models"][0]["extraEnv"] = [{"name": "NCCL_IB_HCA", "value": "x"}]
    assert "extraEnv: NCCL_IB_HCA occurs twice" in refusal(values)


def test_labels_of_one_kind_of_pod_count_before_those_of_all() -> None:
    labels = {"team": "here"}
    values = {
        "commonLabels": {"team": "everywhere"},
        "frontend": {"podLabels": labels},
        "metrics": {"serviceMonitor": {"enabled": True, "labels": labels}},
        **with_gpu_model(podLabels=labels, podAnnotations={"note": "x"}),
    }
    rendered = render(values)
    owners = {pod.owner.partition("/")[0]: pod for pod in pods(rendered)}
    assert {pod.labels["team"] for pod in pods(rendered) if not pod.owner.startswith("Pod/")} == {"here"}
    assert {each["metadata"]["labels"]["team"] for each in rendered.of_kind("ServiceMonitor")} == {"here"}
    assert {each["metadata"]["labels"]["team"] for each in rendered.of_kind("Service")} == {"everywhere"}
    assert owners["Deployment"].annotations["note"] == "x"


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_mounted_is_a_volume_of_the_pod_and_every_volume_is_mounted(name: str) -> None:
    for pod in pods(render(CASES[name])):
        mounted = {mount["name"] for container in pod.containers for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod.spec["volumes"]}, pod.owner


@pytest.mark.parametrize("name", SHAPES)
def test_ports_have_names_that_may_be_and_probes_and_services_use_them(name: str) -> None:
    for pod in pods(render(CASES[name])):
        names = {port["name"] for port in pod.main.get("ports", [])}
        assert all(PORT.fullmatch(each) for each in names)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for kind in ("httpGet", "tcpSocket"):
                if kind in pod.main.get(probe, {}):
                    assert pod.main[probe][kind]["port"] in names


def assert_labels(labels: dict[str, str]) -> None:
    """Check keys and values of labels."""
    for key, value in labels.items():
        assert LABEL_KEY.fullmatch(key), key
        assert LABEL_VALUE.fullmatch(value), value


def test_it_can_be_a_part_of_another_chart(tmp_path: Path) -> None:
    """Helm passes on the parent's global values, and the condition that the parent has for this chart."""
    parent = tmp_path / "parent"
    shutil.copytree(CHART, parent / "charts" / "conch", ignore=shutil.ignore_patterns("examples", "ci"))
    dependency = {"name": "conch", "version": metadata()["version"], "condition": "conch.enabled"}
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    (parent / "values.yaml").write_text("global: {domain: example.com}\n", encoding="utf-8")
    chart = helm_python.Chart.load(parent)
    for is_enabled in (True, False):
        values = {"conch": {"enabled": is_enabled}, "global": {"team": "serving"}}
        chart.validate_schema(values)
        files = chart.render(values, name="demo", namespace="serving")
        assert any("kind: Deployment" in text for text in files.values()) is is_enabled


def test_it_can_be_in_another_chart_twice(tmp_path: Path) -> None:
    """A name that YAML reads as another type was no label, and an install failed."""
    parent = tmp_path / "parent"
    shutil.copytree(CHART, parent / "charts" / "conch", ignore=shutil.ignore_patterns("examples", "ci"))
    aliases = [{"name": "conch", "version": metadata()["version"], "alias": alias} for alias in ("true", "large")]
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": aliases}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    named = {"true": {"nameOverride": "true"}, "large": {"nameOverride": "large", "fullnameOverride": "own"}}
    files = helm_python.Chart.load(parent).render(named, name="demo", namespace="serving")
    objects = {
        alias: [
            each
            for path, text in files.items()
            if f"/{alias}/" in path and path.endswith(".yaml")
            for each in yaml.safe_load_all(text)
            if each
        ]
        for alias in named
    }
    for alias, prefix in (("true", "demo-true-"), ("large", "own-")):
        assert objects[alias]
        for each in objects[alias]:
            assert each["metadata"]["name"].startswith(prefix)
            assert each["metadata"]["labels"]["app.kubernetes.io/name"] == alias
