"""The operators' view of the real stack: metrics on both ports, a request's id in every log, dashboards."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.api import COMPLETIONS, Api
from tests.integration.edge import serving
from tests.integration.stack import PACED_MODEL, Stack
from tests.otlp_receiver import attributes, receiving
from tests.waiting import wait_until

OPERATIONS = Path(__file__).parents[2] / "helm" / "files"
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


def test_a_request_is_in_the_metrics_of_both_ports(stack: Stack, api: Api) -> None:
    _, before = scraped(stack.url)
    _, engine_before = scraped(stack.triton_metrics_url)
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
    total_s = sum(grew(f"conch_{phase}_seconds_sum") for phase in phases[:4])
    assert 0 < total_s <= grew("conch_request_seconds_sum")
    drawn = ("conch_engine_tokens_total", "demo")
    wait_until(
        lambda: scraped(stack.triton_metrics_url)[1][drawn] >= engine_before.get(drawn, 0) + 5,
        "the engine's figures are exported",
    )


def named(stack: Stack, request_id: str) -> list[str]:
    """Return the lines about a request."""
    return [line for line in stack.log if f"request_id={request_id} " in f"{line} "]


def test_a_request_has_one_line_with_the_id_of_its_answer(stack: Stack, api: Api) -> None:
    answer = api.post(COMPLETIONS, {"model": "demo", "prompt": "hello", "max_tokens": 2}, {"x-request-id": "follow/1"})
    [line] = wait_until(lambda: named(stack, "follow/1"), "a line names the request")
    assert answer.headers["x-request-id"] == "follow/1"
    assert line.startswith("[frontend]") and f" id={answer.body['id']} " in line
    assert "hello" not in line


@pytest.mark.parametrize("fields", [{"prompt": "a " * 5000}, {"prompt": ["a", "a " * 5000], "stream": True}])
def test_a_request_that_a_stage_refuses_is_in_both_logs_by_its_id(stack: Stack, api: Api, fields: Any) -> None:
    body, request_id = {"model": "demo", "max_tokens": 2} | fields, f"refuse/{len(fields)}"
    assert api.post(COMPLETIONS, body, {"x-request-id": request_id}).status == 400
    wait_until(lambda: len(named(stack, request_id)) >= 2, "both name it")
    logged_lines = "\n".join(named(stack, request_id))
    assert "refused: context_length_exceeded" in logged_lines
    assert "status=400 error=context_length_exceeded" in logged_lines


async def test_a_request_is_one_trace_from_its_caller_to_the_stages(stack: Stack) -> None:
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace_id}-{parent_id}-01"}
    body = {"model": PACED_MODEL, "prompt": "hello", "max_tokens": 20, "n": 2}
    with receiving() as receiver:
        async with serving(stack, otlp_endpoint=receiver.endpoint) as port:
            answer = await asyncio.to_thread(Api(f"http://127.0.0.1:{port}").post, COMPLETIONS, body, headers)
    assert answer.status == 200
    spans = receiver.spans()
    assert {span.trace_id.hex() for span in spans} == {trace_id}
    [request] = [span for span in spans if span.parent_span_id.hex() == parent_id]
    completions = [span for span in spans if span.parent_span_id == request.span_id]
    assert [attributes(span)["gen_ai.usage.output_tokens"] for span in completions] == [20, 20]
    for completion in completions:
        stages = {span.name: span for span in spans if span.parent_span_id == completion.span_id}
        assert list(stages) == ["tokenization", "queue", "prefill", "decode", "detokenization"]
        decode = stages["decode"]
        assert decode.end_time_unix_nano - decode.start_time_unix_nano >= 19 * 8_000_000  # a token every 10 ms


def test_every_name_in_the_dashboard_and_the_rules_has_values_after_a_short_run(stack: Stack, api: Api) -> None:
    body = {"model": "demo", "prompt": "hello", "max_tokens": 20, "ignore_eos": True}
    api.events(COMPLETIONS, body)
    assert api.post(COMPLETIONS, body | {"max_tokens": -1}).status == 400

    def missing() -> set[str]:
        samples = {name for url in (stack.url, stack.triton_metrics_url) for name, _ in scraped(url)[1]}
        return named_in_operations() - samples

    assert len(named_in_operations()) > 20
    wait_until(lambda: not missing(), "each name has values")


def named_in_operations() -> set[str]:
    """Return the metrics that the rules and the dashboard use."""
    rules = yaml.safe_load((OPERATIONS / "prometheus-rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((OPERATIONS / "grafana-dashboard.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return {name for expression in expressions for name in NAME.findall(expression)}


def test_an_engine_that_is_killed_and_reloaded_exports_its_figures_again(stack: Stack, api: Api) -> None:
    model, drawn = PACED_MODEL, ("conch_engine_finished_total", PACED_MODEL)
    stack.kill_stage("synthetic--paced__engine")
    body = {"model": model, "prompt": "x", "max_tokens": 2}

    def answers() -> bool:
        stack.start_again_if_ended()
        return api.post("/v1/completions", body).status == 200

    wait_until(answers, "the engine was reloaded")
    before = scraped(stack.triton_metrics_url)[1].get(drawn, 0)
    assert api.post("/v1/completions", body).status == 200
    wait_until(
        lambda: scraped(stack.triton_metrics_url)[1].get(drawn, 0) > before, "the new engine's figures are exported"
    )


def promtool(*arguments: str | Path, given: bytes = b"") -> tuple[int, str]:
    """Return the status and the output of Prometheus' own tool."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs the Debian package prometheus")
    done = subprocess.run(
        [program, *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode()


def test_promtool_finds_no_fault_in_the_rules() -> None:
    status, said = promtool("check", "rules", OPERATIONS / "prometheus-rules.yaml")
    assert status == 0, said


def test_promtool_finds_no_fault_in_our_metrics(stack: Stack) -> None:
    for url in (stack.url, stack.triton_metrics_url):
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            _, said = promtool("check", "metrics", given=answer.read())
        assert [line for line in said.splitlines() if not line.startswith("nv_")] == []  # those are Triton's
