"""The examples: those of single models follow the catalog and the planner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from build_engines.catalog import Catalog
from helm.generate import examples as generated
from tests.helm.cases import CASES, EXAMPLE_FILES
from tests.helm.chart import CHART, pods, render

KEPT = "llama3-1-405b-h100.yaml"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run `python -m helm.generate.examples` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["examples", *arguments])
    generated.main()


def test_the_folder_has_only_one_example_of_the_catalog() -> None:
    assert {path.name for path in EXAMPLE_FILES} == {KEPT, "mixed.yaml", "air-gapped.yaml", "retrieval.yaml"}
    command = f"python -m helm.generate.examples llama3.1:405b h100 > helm/examples/{KEPT}"
    assert (CHART / "examples" / KEPT).read_text(encoding="utf-8") == generated.examples()[KEPT], f"run `{command}`"


@pytest.mark.parametrize("model", ["llama3.1:405b", "Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B-Instruct"])
def test_the_command_prints_the_values_of_a_model(model, monkeypatch, capsys) -> None:
    run(monkeypatch, model, "h100")
    assert capsys.readouterr().out == generated.examples()[KEPT]


def test_the_command_writes_the_values_of_all_models_and_gpus(monkeypatch, tmp_path: Path) -> None:
    run(monkeypatch, "--all", str(tmp_path / "new"))
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()}
    assert written == generated.examples()
    assert len(written) == 2 * len(Catalog.load().built) - 1, "DeepSeek-V3.2 fits no node of H100"


def test_without_a_network_nothing_is_downloaded_and_no_image_comes_from_outside() -> None:
    rendered = render(CASES["air-gapped"])
    for pod in pods(rendered):
        for container in pod.containers:
            assert container["name"] not in ("build", "download")
            assert container["image"].startswith("registry.internal.example/llm/conch-")
    for policy in rendered.of_kind("NetworkPolicy"):
        assert {"ports": [{"protocol": "TCP", "port": 443}]} not in policy["spec"]["egress"]


def test_the_default_install_asks_for_little() -> None:
    assert yaml.safe_load((CHART / "ci" / "default-values.yaml").read_text(encoding="utf-8")) == {}
    rendered = render()
    assert {each["apiVersion"].rpartition("/")[0] for each in rendered.objects} <= {"", "apps", "networking.k8s.io"}
    requests = [pod.main["resources"]["requests"] for pod in pods(rendered)]
    assert sum(int(each["cpu"].removesuffix("m")) for each in requests) < 1000
    assert sum(int(each["memory"].removesuffix("Mi")) for each in requests) < 1024
    kinds = {key for pod in pods(rendered) for volume in pod.spec["volumes"] for key in volume if key != "name"}
    assert kinds == {"emptyDir", "configMap", "secret"}
    others = [each for each in rendered.objects if each["kind"] != "Secret"]  # a random key may have the letters
    assert "gpu" not in str(others).lower().replace("tritongpu", "")
