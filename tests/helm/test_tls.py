"""TLS between the frontend and the models' pods, in the rendered chart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helm.cases import case
from tests.helm.chart import PodTemplate, Rendered, pods, render


def by_owner(rendered: Rendered) -> dict[str, PodTemplate]:
    return {pod.owner: pod for pod in pods(rendered)}


def secrets_of(pod: PodTemplate) -> dict[str, Any]:
    """Return what a pod has of Secrets, by the path at which it is there."""
    volumes = {volume["name"]: volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume}
    return {
        mount["mountPath"]: volumes[mount["name"]] for mount in pod.main["volumeMounts"] if mount["name"] in volumes
    }


def test_the_frontend_has_its_own_certificate_and_of_the_models_only_their_authority() -> None:
    frontend = by_owner(case("tls"))["Deployment/demo-frontend"]
    assert secrets_of(frontend) == {
        "/etc/conch/keys": {"secretName": "demo-api-keys", "items": [{"key": "keys.json", "path": "keys.json"}]},
        "/etc/conch/tls": {"secretName": "api-tls"},
        "/etc/conch/triton-tls": {"secretName": "triton-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
        "/etc/conch/triton-client": {"secretName": "triton-client"},
    }
    assert "--triton=demo=dns:demo-demo-pods.serving.svc:8001" in frontend.main["args"]


@pytest.mark.parametrize("owner", ["Deployment/demo-demo", "leader"])
def test_what_asks_triton_inside_a_models_pod_does_it_as_the_frontend_does(owner: str) -> None:
    [pod] = [pod for pod in pods(case("tls")) if pod.owner.endswith(owner)]
    assert {"/etc/conch/triton-tls", "/etc/conch/triton-client"} <= set(secrets_of(pod))
    assert "--tls-client-ca=/etc/conch/triton-client/ca.crt" in pod.main["args"]
    [frontend] = [pod for pod in pods(case("tls")) if pod.owner == "Deployment/demo-frontend"]
    shown = {word for word in frontend.main["args"] if word.startswith("--triton-tls")}
    probes = [pod.main[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    for asks in (*probes, pod.main["lifecycle"]["preStop"]):
        assert shown < set(asks["exec"]["command"])
        assert re.search(r" --triton-tls-name=demo-\S+-pods\.serving\.svc( |$)", " ".join(asks["exec"]["command"]))


def test_further_nodes_of_a_group_have_no_certificates() -> None:
    [worker] = [pod for pod in pods(case("tls")) if pod.owner.endswith("worker")]
    assert set(secrets_of(worker)) == {"/etc/conch/ssh"}


def test_models_without_a_certificate_of_the_frontends_accept_every_client() -> None:
    words = str(render({"tritonTls": {"existingSecret": "x"}}).objects)
    assert "--triton-tls-ca=" in words
    assert "--triton-tls-cert=" not in words
    assert "--tls-client-ca=" not in words


def test_probes_and_prometheus_ask_the_operations_port_as_it_wants_to_be_asked() -> None:
    for rendered, scheme in ((case("tls"), "HTTPS"), (render(), "HTTP")):
        frontend = by_owner(rendered)["Deployment/demo-frontend"].main
        probes = [frontend[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
        assert [probe["scheme"] for probe in probes] == [scheme] * 3
    [scraped] = case("tls").one("ServiceMonitor", "demo-frontend")["spec"]["endpoints"]
    assert (scraped["scheme"], scraped["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    [scraped] = case("tls").one("ServiceMonitor", "demo-models")["spec"]["endpoints"]
    assert "scheme" not in scraped
