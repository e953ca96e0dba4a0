"""A model that is scaled to zero: what KEDA is told and asks for, and what clients see, run as processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.cases import with_demo
from tests.helm.chart import render
from tests.helm.sandbox import Sandbox, sandbox, why_impossible
from tests.helm.test_default_install import VALUES, Install
from tests.helm.test_monitoring import needs_promtool
from tests.helm.test_replicas import endpoints, start
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.usefixtures("servers")

PODS = "demo-demo-pods"
RESTING = {"enabled": True, "scaleToZero": True}
LABELS = 'model="demo", namespace="serving", service="demo-frontend-operations"'

needs_namespaces = pytest.mark.skipif(why_impossible() != "", reason=why_impossible())


def scaled_object(**settings: Any) -> dict[str, Any]:
    """Return the spec of the demo model's ScaledObject."""
    autoscaling = RESTING | settings.pop("autoscaling", {})
    [found] = render(with_demo(autoscaling=autoscaling, **settings)).of_kind("ScaledObject")
    spec: dict[str, Any] = found["spec"]
    return spec


def query_of(spec: dict[str, Any]) -> str:
    return str(spec["triggers"][0]["metadata"]["query"])


def test_keda_goes_to_zero_and_comes_back_with_as_many_as_there_are_at_least() -> None:
    spec = scaled_object(autoscaling={"minReplicas": 2})
    assert (spec["idleReplicaCount"], spec["minReplicaCount"]) == (0, 2)
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 2, "behavior": "currentReplicasIfHigher"}
    [without] = render(with_demo(autoscaling={"enabled": True})).of_kind("ScaledObject")
    assert not {"idleReplicaCount", "cooldownPeriod"} & set(without["spec"])


def test_a_model_is_not_given_up_while_it_loads() -> None:
    assert scaled_object(autoscaling={"scaleDownSeconds": 60}, loadTimeoutSeconds=900)["cooldownPeriod"] == 900
    assert scaled_object(autoscaling={"scaleDownSeconds": 1200}, loadTimeoutSeconds=900)["cooldownPeriod"] == 1200


def test_a_wish_is_seen_however_seldom_keda_looks() -> None:
    assert "[120s]" in query_of(scaled_object())
    assert "[600s]" in query_of(scaled_object(autoscaling={"pollingSeconds": 300}))


@needs_promtool
def test_the_query_is_one_after_a_refusal_and_else_the_number_of_running_requests(tmp_path: Path) -> None:
    one, other = (f'{LABELS}, pod="{name}"' for name in ("one", "other"))
    series = {
        # From minute 10 to 16 two frontends refuse many; from minute 20 on they answer 3 and 2 requests.
        f'conch_shed_total{{code="model_not_ready", {one}}}': "0x9 20+20x5 140x100",
        f'conch_shed_total{{code="model_not_ready", {other}}}': "0x9 5x100",
        f'conch_shed_total{{code="overloaded", {one}}}': "0+100x100",
        f'conch_shed_total{{code="model_not_ready", {one.replace("demo", "another", 1)}}}': "0+100x100",
        f"conch_requests_in_flight{{{one}}}": "0x19 3x100",
        f"conch_requests_in_flight{{{other}}}": "0x19 2x100",
    }
    expected = {"5m": 0, "10m": 1, "15m": 1, "19m": 0, "25m": 5}
    query = query_of(scaled_object())
    given = [{"series": name, "values": values} for name, values in series.items()]
    samples = [
        {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
        for at, value in expected.items()
    ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [{"interval": "1m", "input_series": given, "promql_expr_test": samples}]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_namespaces
def test_a_resting_model_answers_503_is_wanted_and_is_served_when_its_pod_is_ready(tmp_path: Path) -> None:
    with sandbox(render(VALUES | with_demo(autoscaling=RESTING)), tmp_path) as box:
        install = Install(box)
        box.name_services("127.0.0.1", but=PODS)  # a headless Service without pods has no addresses
        box.run(install.frontend, install.frontend.main)
        readiness = partial(box.probe, install.frontend, install.frontend.main["readinessProbe"])
        wait_until(readiness, "the frontend is ready")
        assert wanted(box) == 0
        assert said_by_the_test(install) == "ok: serves none\nok: demo is scaled to zero; retry in 1 s\n"
        assert wanted(box) == 1

        process = start(box, install.model)
        box.name_services("127.0.0.1")
        wait_until(lambda: state(box) == "ready", "the pod is known")
        assert "ok: demo streams" in said_by_the_test(install)

        box.name_services("127.0.0.1", but=PODS)
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
        wait_until(lambda: endpoints(box) == {} and state(box) == "not loaded", "the pod is forgotten")
        assert readiness()
        assert "ok: demo is scaled to zero" in said_by_the_test(install)
        assert wanted(box) == 2


def said_by_the_test(install: Install) -> str:
    """Return what `helm test` says."""
    process = install.box.run(install.test, install.test.main)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return said


def state(box: Sandbox) -> str:
    """Return the state of the model, as the frontend tells it."""
    return str(json.loads(box.fetch("http://127.0.0.1:9000/health/ready") or "{}")["models"]["demo"])


def wanted(box: Sandbox) -> float:
    """Return how many requests were refused because nothing serves the model."""
    text = box.fetch("http://127.0.0.1:9000/metrics") or ""
    [value] = re.findall(r'^conch_shed_total\{code="model_not_ready",model="demo"\} (.*)$', text, re.MULTILINE)
    return float(value)
