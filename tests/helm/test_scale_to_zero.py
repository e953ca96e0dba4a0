"""A model that is scaled to zero: what KEDA is told and asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.helm.cases import with_demo
from tests.helm.chart import CHART, render
from tests.helm.test_monitoring import needs_promtool

RESTING = {"enabled": True, "scaleToZero": True}
LABELS = 'model="demo", namespace="serving", service="demo-frontend-operations"'


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
def test_the_query_is_one_after_a_refusal_and_else_the_number_of_requests(tmp_path: Path) -> None:
    one, other = (f'{LABELS}, pod="{name}"' for name in ("one", "other"))
    series = {
        # From minute 10 to 16 two frontends refuse many; from minute 20 on they have 3 and 2 requests.
        f'conch_shed_total{{code="model_not_ready", {one}}}': "0x9 20+20x5 140x100",
        f'conch_shed_total{{code="model_not_ready", {other}}}': "0x9 5x100",
        f'conch_shed_total{{code="overloaded", {one}}}': "0+100x100",
        f'conch_shed_total{{code="model_not_ready", {one.replace("demo", "another", 1)}}}': "0+100x100",
        f"conch_requests_in_flight{{{one}}}": "0x19 3x100",
        f"conch_requests_in_flight{{{other}}}": "0x19 2x100",
    }
    expected = {"5m": 0, "10m": 1, "15m": 1, "19m": 0, "25m": 5}
    query = query_of(scaled_object())
    samples = [
        {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
        for at, value in expected.items()
    ]
    check(tmp_path, series, promql_expr_test=samples)


@needs_promtool
def test_an_alert_names_the_models_for_which_requests_wait_or_are_refused(tmp_path: Path) -> None:
    series = {
        'conch_requests_in_flight{model="waits"}': "2x40",
        'conch_engine_up{model="waits"}': "0x40",
        'conch_requests_in_flight{model="never-up"}': "2x40",
        'conch_requests_in_flight{model="runs"}': "2x40",
        'conch_engine_up{model="runs"}': "1x40",
        'conch_shed_total{code="model_not_ready", model="refused"}': "0+1x40",
    }
    summary = "Requests for {} wait or have been refused for 15 minutes, because no endpoint serves it."
    alerts = [
        {"exp_labels": {"model": name, "severity": "warning"}, "exp_annotations": {"summary": summary.format(name)}}
        for name in ("refused", "waits", "never-up")
    ]
    check(
        tmp_path, series, alert_rule_test=[{"eval_time": "20m", "alertname": "ConchModelWanted", "exp_alerts": alerts}]
    )


def check(folder: Path, series: dict[str, str], **tests: list[Any]) -> None:
    """Have Prometheus' tool check the chart's rules and expressions on these series, a value for each minute."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    file, rules = folder / "test.yaml", str(CHART / "files" / "prometheus-rules.yaml")
    written = {"rule_files": [rules], "tests": [{"interval": "1m", "input_series": given} | tests]}
    file.write_text(yaml.safe_dump(written))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
