"""The examples: those of single models are what the catalog and the planner say."""

from __future__ import annotations

import pytest
import yaml

from build_engines.catalog import Catalog
from helm.generate import examples as generated
from tests.helm.cases import CASES, EXAMPLES
from tests.helm.chart import CHART, pods, render


def test_the_examples_are_those_of_the_catalog() -> None:
    expected = generated.examples()
    assert len(expected) == 2 * len(Catalog.load()) == 30
    for name, text in expected.items():
        assert (CHART / "examples" / name).read_text(encoding="utf-8") == text, "run `python -m helm.generate.examples`"
    assert {path.name for path in EXAMPLES} == {*expected, "mixed.yaml", "air-gapped.yaml"}


def test_16_the_405b_model_takes_two_nodes_of_h100_and_one_of_h200() -> None:
    [group] = render(CASES["llama3-1-405b-h100"]).of_kind("LeaderWorkerSet")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert render(CASES["llama3-1-405b-h200"]).of_kind("LeaderWorkerSet") == []


def test_a_build_is_given_the_memory_that_a_conversion_takes() -> None:
    values = CASES["llama3-1-70b-h100"]
    [build] = [
        each for pod in pods(render(values)) for each in pod.spec.get("initContainers", ()) if each["name"] == "build"
    ]
    requests = build["resources"]["requests"]
    assert requests["memory"] == values["models"][0]["build"]["resources"]["requests"]["memory"]
    assert requests["nvidia.com/gpu"] == "4"


def test_without_a_network_nothing_is_downloaded_and_no_image_comes_from_outside() -> None:
    rendered = render(CASES["air-gapped"])
    for pod in pods(rendered):
        for container in pod.containers:
            assert container["name"] not in ("build", "download")
            assert container["image"].startswith("registry.internal.example/llm/conch-")
    for policy in rendered.of_kind("NetworkPolicy"):
        assert {"ports": [{"protocol": "TCP", "port": 443}]} not in policy["spec"]["egress"]


@pytest.mark.parametrize("name", ["mixed", "air-gapped"])
def test_the_others_ask_for_keys(name: str) -> None:
    assert CASES[name]["frontend"]["auth"]["existingSecret"]
    assert "NO API KEYS" not in render(CASES[name]).notes


def test_the_default_install_asks_for_little() -> None:
    assert yaml.safe_load((CHART / "ci" / "default-values.yaml").read_text(encoding="utf-8")) == {}
    rendered = render()
    assert {each["apiVersion"].rpartition("/")[0] for each in rendered.objects} <= {"", "apps", "networking.k8s.io"}
    requests = [pod.main["resources"]["requests"] for pod in pods(rendered)]
    assert sum(int(each["cpu"].removesuffix("m")) for each in requests) < 1000
    assert sum(int(each["memory"].removesuffix("Mi")) for each in requests) < 1024
    kinds = {key for pod in pods(rendered) for volume in pod.spec["volumes"] for key in volume if key != "name"}
    assert kinds == {"emptyDir", "configMap"}
    others = [each for each in rendered.objects if each["kind"] != "Secret"]  # a random key may have the letters
    assert "gpu" not in str(others).lower().replace("tritongpu", "")
