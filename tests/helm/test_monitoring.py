"""What Prometheus, Grafana and KEDA are given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from frontend.telemetry.definitions import METRICS
from model_repository.engine.metrics import FAMILIES
from tests.helm.cases import CASES, SHAPES, case, with_demo
from tests.helm.chart import Rendered, pods, render

NAME = re.compile(r"\bconch_\w+")
SUFFIXES = re.compile(r"_(bucket|count|sum)$")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")


def exported() -> set[str]:
    """Return every metric that is exported; a test of the telemetry compares these with a running server."""
    return {metric.name for metric in METRICS} | {family.name for family in FAMILIES}


def expressions(rendered: Rendered) -> list[str]:
    """Return every expression of Prometheus' language in the objects."""
    found = [
        rule["expr"]
        for each in rendered.of_kind("PrometheusRule")
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    ]
    for each in rendered.of_kind("ConfigMap"):
        for name, text in each.get("data", {}).items():
            if name.endswith(".json"):
                found += [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", [])]
    found += [t["metadata"]["query"] for each in rendered.of_kind("ScaledObject") for t in each["spec"]["triggers"]]
    return found


@pytest.mark.parametrize("name", ["gpu", "scaled"])
def test_every_queried_metric_is_exported(name: str) -> None:
    named = {SUFFIXES.sub("", found) for text in expressions(case(name)) for found in NAME.findall(text)}
    named |= {
        metric["pods"]["metric"]["name"]
        for each in case(name).of_kind("HorizontalPodAutoscaler")
        for metric in each["spec"]["metrics"]
        if "pods" in metric
    }
    assert named
    assert named <= exported()


def test_keda_asks_for_the_requests_of_one_model_of_one_release() -> None:
    rendered = render(with_demo(autoscaling={"enabled": True}))
    [trigger] = rendered.of_kind("ScaledObject")[0]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert query == (
        'sum(conch_requests_in_flight{model="demo", namespace="serving", service="demo-frontend-operations"})'
    )
    assert rendered.one("Service", "demo-frontend-operations")
    assert trigger["metadata"]["ignoreNullValues"] == "false"


@needs_promtool
@pytest.mark.parametrize("name", ["gpu", "scaled"])
def test_alerts_are_rules_and_every_expression_parses(name: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"checked:{number}", "expr": _without_variables(text)}
        for number, text in enumerate(expressions(case(name)))
    ]
    rendered = [group for rule in case(name).of_kind("PrometheusRule") for group in rule["spec"]["groups"]]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}, *rendered]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_monitors_select_services_that_have_their_ports() -> None:
    rendered = case("gpu")
    monitors = rendered.of_kind("ServiceMonitor")
    assert len(monitors) == 2
    for monitor in monitors:
        selector = monitor["spec"]["selector"]["matchLabels"]
        services = [s for s in rendered.of_kind("Service") if selector.items() <= s["metadata"]["labels"].items()]
        assert services
        for service in services:
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_each_pod_is_scraped_once() -> None:
    rendered = case("gpu")
    scraped: dict[str, int] = {}
    for monitor in rendered.of_kind("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        for service in rendered.of_kind("Service"):
            if selector.items() <= service["metadata"]["labels"].items():
                for pod in pods(rendered):
                    if service["spec"]["selector"].items() <= pod.labels.items():
                        scraped[pod.owner] = scraped.get(pod.owner, 0) + 1
    assert set(scraped.values()) == {1}
    assert len(scraped) == 4


@pytest.mark.parametrize("name", SHAPES)
def test_every_port_of_a_service_is_one_of_its_pods(name: str) -> None:
    rendered = render(CASES[name])
    for service in rendered.of_kind("Service"):
        selector = {k: v for k, v in service["spec"]["selector"].items() if not k.startswith("leaderworkerset")}
        selected = [pod for pod in pods(rendered) if selector.items() <= pod.labels.items()]
        assert selected
        for port in service["spec"]["ports"]:
            named = [each["name"] for container in selected[0].containers for each in container.get("ports", ())]
            assert port["targetPort"] in named


def test_the_test_asks_every_model_through_the_service() -> None:
    rendered = case("gpu")
    pod = rendered.one("Pod", "demo-test-api")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    command = pod["spec"]["containers"][0]["command"]
    assert command[2] == "http://demo-frontend:80"
    assert command[3:] == [
        "meta-llama/Meta-Llama-3.1-70B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
    ]


def test_there_is_no_test_where_it_could_not_pass_or_is_not_wanted() -> None:
    assert case("cpu").of_kind("Pod") == []  # clients need certificates
    assert case("plain").of_kind("Pod") == []
    keys = {"frontend": {"auth": {"existingSecret": "api-keys"}}}
    without, with_key = render(keys), render({**keys, "tests": {"apiKey": {"existingSecret": "test-key"}}})
    assert without.of_kind("Pod") == []
    assert (
        "`helm test` is not available: with frontend.auth.existingSecret it needs tests.apiKey.existingSecret"
        in without.notes
    )
    assert "`helm test` is not available" not in with_key.notes
    [volume] = [each for each in with_key.of_kind("Pod")[0]["spec"]["volumes"] if each["name"] == "key"]
    assert volume["secret"] == {"secretName": "test-key"}


def _without_variables(expression: str) -> str:
    """Return an expression of a dashboard with values for Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$__interval", "1m")
