"""What Helm prints after an install."""

from __future__ import annotations

from tests.helm.cases import case, values_of, with_demo
from tests.helm.chart import render

KEYS = {"auth": {"existingSecret": "api-keys"}}


def test_the_notes_have_a_request_and_warn_if_there_are_no_api_keys() -> None:
    notes = render().notes
    assert "kubectl --namespace serving port-forward service/demo-frontend 8000:80" in notes
    assert '"model": "demo"' in notes
    assert "helm test demo --namespace serving" in notes
    assert "get secret demo-api-keys --output 'jsonpath={.data.api-key}' | base64 --decode)" in notes
    assert "Authorization: Bearer $API_KEY" in notes
    assert "NO API KEYS" not in notes
    named = render({"frontend": KEYS}).notes
    assert "Authorization: Bearer $API_KEY" in named and "demo-api-keys" not in named
    anonymous = render({"frontend": {"auth": {"allowAnonymous": True}}}).notes
    assert "NO API KEYS" in anonymous and "API_KEY=" not in anonymous and "Authorization" not in anonymous


def test_the_notes_name_the_requirements_of_the_cluster() -> None:
    assert "These values need" not in render().notes
    assert "need in the cluster: LeaderWorkerSet (leaderworkerset.x-k8s.io)." in case("nodes").notes
    for name in ("KEDA 2.17 or later (keda.sh)", "the Gateway API (gateway"):
        assert name in case("scaled").notes
    assert "Inference Extension (inference.networking.k8s.io)" in case("sidecar").notes


def test_the_notes_name_the_labels_of_kedas_queries_without_a_service_monitor() -> None:
    said = "let Prometheus scrape demo-frontend-operations with these labels"
    for is_monitored in (False, True):
        values = values_of("scaled") | {"metrics": {"serviceMonitor": {"enabled": is_monitored}}}
        assert (said not in render(values).notes) is is_monitored
    assert said not in render().notes


def test_the_notes_warn_of_the_effects_of_values() -> None:
    without_spare = with_demo(strategy={"maxSurge": 0, "maxUnavailable": 1})
    assert "demo has one replica, and strategy.maxUnavailable 1" in render(without_spare).notes
    assert "counts the rates of keys separately" in render({"frontend": {**KEYS, "replicas": 2}}).notes
    shared = {**KEYS, "replicas": 2, "redis": {"existingSecret": "redis"}}
    assert "counts the rates of keys separately" not in render({"frontend": shared}).notes
    assert "The pods of llama-70b, qwen-7b first build or download their artifacts" in case("gpu").notes


def test_the_request_in_the_notes_uses_tls_and_a_client_certificate_if_needed() -> None:
    assert "curl http://127.0.0.1:8000/v1" in render().notes
    assert "curl --insecure https://127.0.0.1:8000/v1" in render({"frontend": {"tls": {"existingSecret": "a"}}}).notes
    assert "curl --insecure --cert CLIENT.crt --key CLIENT.key https://127.0.0.1:8000/v1" in case("cpu").notes


def test_the_notes_name_services_that_the_network_policy_hides_from_the_frontend() -> None:
    values = values_of("cpu")
    assert "cannot reach Redis and the collector of traces: its NetworkPolicy" in render(values).notes
    for policy in ({"frontendEgress": [{"ports": [{"port": 6379}]}]}, {"enabled": False}):
        assert "cannot reach" not in render(values | {"networkPolicy": policy}).notes
    assert "cannot reach" not in render().notes
