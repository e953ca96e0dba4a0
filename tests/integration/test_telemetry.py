"""What operators see of the real stack: metrics on both ports, one request in every log, names in the dashboard."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from frontend.telemetry.definitions import METRICS
from model_repository.engine.metrics import FAMILIES
from tests.integration.api import Api
from tests.integration.stack import PACED_MODEL, Stack, wait_until

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
NAME = re.compile(r"\bconch_[a-z_]+")

type Samples = dict[tuple[str, str], float]


def scraped(url: str) -> tuple[set[str], Samples]:
    """Return the names that a port exports, and the sum of each name's values by model."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    names: set[str] = set()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names.update(family.name + suffix for suffix in suffixes)
        for sample in family.samples:
            key = (sample.name, sample.labels.get("model", ""))
            samples[key] = samples.get(key, 0) + sample.value
    return names, samples


def triton_url(stack: Stack) -> str:
    return f"http://127.0.0.1:{stack.launcher.triton_ports.metrics}"


@contextmanager
def logged(stack: Stack) -> Iterator[list[str]]:
    """Collect what both children write."""
    lines: list[str] = []
    children = (stack.launcher.triton, stack.launcher.frontend)
    logs = [child._log for child in children]

    def collecting(log: Callable[[str], None]) -> Callable[[str], None]:
        def collect(line: str) -> None:
            lines.append(line)
            log(line)

        return collect

    for child, log in zip(children, logs, strict=True):
        child._log = collecting(log)
    try:
        yield lines
    finally:
        for child, log in zip(children, logs, strict=True):
            child._log = log


def test_a_request_is_in_the_metrics_of_both_ports(stack: Stack, api: Api) -> None:
    _, before = scraped(stack.url)
    _, engine_before = scraped(triton_url(stack))
    body = {"model": "demo", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
    answer = api.post("/v1/completions", body)
    assert re.fullmatch(
        r"tokenize;dur=[\d.]+, queue;dur=[\d.]+, prefill;dur=[\d.]+, decode;dur=[\d.]+, total;dur=[\d.]+",
        answer.headers["Server-Timing"],
    )
    _, after = scraped(stack.url)

    def grew(name: str) -> float:
        return after[name, "demo"] - before.get((name, "demo"), 0)

    assert grew("conch_output_tokens_total") == 5
    assert grew("conch_completions_total") == 1
    phases = ("tokenization", "queue", "prefill", "decode", "request", "time_to_first_token")
    for phase in phases:
        assert grew(f"conch_{phase}_seconds_count") == 1
    told = sum(grew(f"conch_{phase}_seconds_sum") for phase in phases[:4])
    assert 0 < told <= grew("conch_request_seconds_sum")
    drawn = ("conch_engine_tokens_total", "demo")
    wait_until(
        lambda: scraped(triton_url(stack))[1][drawn] >= engine_before.get(drawn, 0) + 5, "the engine's figures are told"
    )


def test_a_request_is_followed_by_its_id_from_the_frontends_log_to_the_engines(stack: Stack) -> None:
    body = json.dumps({"model": "demo", "prompt": "hello", "max_tokens": 2}).encode()
    headers = {"Content-Type": "application/json", "x-request-id": "follow-me/1"}
    with logged(stack) as lines:
        request = urllib.request.Request(f"{stack.url}/v1/completions", data=body, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()
        wait_until(lambda: sum("request_id=follow-me/1 " in line for line in lines) == 2, "two lines name the request")
    named = [line for line in lines if "follow-me/1" in line]
    assert {line.split("]")[0] for line in named} == {"[frontend", "[triton"}
    assert not any("hello" in line for line in named)


def test_every_name_in_the_dashboard_and_the_rules_is_exported(stack: Stack, api: Api) -> None:
    api.post("/v1/completions", {"model": "demo", "prompt": "hello", "max_tokens": 3, "stream": True})
    wait_until(lambda: "conch_engine_tokens_total" in scraped(triton_url(stack))[0], "the engine's figures are told")
    wait_until(lambda: ("conch_engine_up", "demo") in scraped(stack.url)[1], "the engine was looked at")
    exported = scraped(stack.url)[0] | scraped(triton_url(stack))[0]
    rules = yaml.safe_load((OPERATIONS / "prometheus-rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((OPERATIONS / "grafana-dashboard.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(named) > 20
    assert named <= exported


def test_every_metric_of_the_definitions_is_exported(stack: Stack) -> None:
    wait_until(lambda: "conch_engine_tokens_total" in scraped(triton_url(stack))[0], "the engine's figures are told")
    names = scraped(stack.url)[0]
    for metric in METRICS:
        assert metric.name in names or f"{metric.name}_count" in names
    assert {family.name for family in FAMILIES} <= scraped(triton_url(stack))[0]


def test_an_engine_that_is_killed_and_reloaded_tells_its_figures_again(stack: Stack, api: Api) -> None:
    model, drawn = PACED_MODEL, ("conch_engine_finished_total", PACED_MODEL)
    stack.kill_stage("synthetic--paced__engine")
    body = {"model": model, "prompt": "x", "max_tokens": 2}
    wait_until(lambda: api.post("/v1/completions", body).status == 200, "the engine was reloaded")
    before = scraped(triton_url(stack))[1].get(drawn, 0)
    assert api.post("/v1/completions", body).status == 200
    wait_until(lambda: scraped(triton_url(stack))[1].get(drawn, 0) > before, "the new engine's figures are told")


def test_every_rule_has_what_a_rule_needs() -> None:
    document = yaml.safe_load((OPERATIONS / "prometheus-rules.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        for opening, closing in ("()", "[]", "{}"):
            assert rule["expr"].count(opening) == rule["expr"].count(closing)
