"""What Helm prints after an install."""

from __future__ import annotations

from tests.helm.cases import case, with_demo
from tests.helm.chart import render

KEYS = {"auth": {"existingSecret": "api-keys"}}


def test_the_notes_say_how_to_ask_and_that_nobody_is_kept_out() -> None:
    notes = render().notes
    assert "kubectl --namespace serving port-forward service/demo-frontend 8000:80" in notes
    assert '"model": "demo"' in notes
    assert "helm test demo --namespace serving" in notes
    assert "NO API KEYS" in notes
    assert "NO API KEYS" not in render({"frontend": KEYS}).notes


def test_the_notes_name_what_must_be_in_the_cluster() -> None:
    assert "These values need" not in render().notes
    assert "in the cluster: LeaderWorkerSet (leaderworkerset.x-k8s.io)." in case("nodes").notes
    for name in ("KEDA (keda.sh)", "the Gateway API (gateway", "inference extension"):
        assert name in case("scaled").notes


def test_the_notes_warn_of_what_a_value_brings_with_it() -> None:
    without_spare = with_demo(strategy={"maxSurge": 0, "maxUnavailable": 1})
    assert "demo has one replica, and strategy.maxUnavailable 1" in render(without_spare).notes
    assert "counts the rates of keys by itself" in render({"frontend": {**KEYS, "replicas": 2}}).notes
    shared = {**KEYS, "replicas": 2, "redis": {"existingSecret": "redis"}}
    assert "counts the rates of keys by itself" not in render({"frontend": shared}).notes
    assert "Jobs build or download llama-70b, qwen-7b" in case("gpu").notes
