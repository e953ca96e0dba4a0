"""TLS between the frontend and the models' pods: what is rendered, and an install with it, run as processes.

The certificates are made by the commands of the README.
"""

from __future__ import annotations

import base64
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm.cases import case
from tests.helm.chart import CHART, NAMESPACE, PodTemplate, Rendered, pods, render
from tests.helm.sandbox import sandbox, why_impossible
from tests.helm.test_default_install import Install
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("servers")

CERTIFICATES = re.compile(r"<!-- certificates: begin -->\n```sh\n(?P<commands>.*?)```", re.DOTALL)


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


def test_there_is_no_tls_unless_it_is_asked_for() -> None:
    assert "tls" not in str([pod.main for pod in pods(render())])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the README were run."""
    folder = tmp_path_factory.mktemp("certificates")
    found = CERTIFICATES.search((CHART / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    subprocess.run(["sh", "-euc", found["commands"]], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def install(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    """A release with TLS, ready; it was made so by its own probes."""
    values = {
        "frontend": {"service": {"port": 8000}, "tls": {"existingSecret": "triton-tls"}},
        "tritonTls": {"existingSecret": "triton-tls", "clientSecret": "triton-client-tls"},
        "extraObjects": [_secret(certificates, name) for name in ("triton", "triton-client")],
    }
    with sandbox(render(values), tmp_path_factory.mktemp("sandbox")) as box:
        found = Install(box)
        found.start()
        yield found


@pytest.mark.skipif(why_impossible() != "", reason=why_impossible())
def test_an_install_with_tls_answers_and_takes_itself_out_of_service(install: Install) -> None:
    for pod in (install.model, install.frontend):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert install.box.probe(pod, pod.main[probe]), f"{pod.owner} {probe}"
    said, _ = install.box.run(install.test, install.test.main).communicate(timeout=DEADLINE_S)
    assert re.search(r"\nok: demo streams \d+ events\n$", said), said
    assert said_by(install, _without_tls(install.model.main["livenessProbe"]["exec"]["command"])).startswith("failed")
    words = [
        re.sub("--notice-s=.*", "--notice-s=1", word)
        for word in install.model.main["lifecycle"]["preStop"]["exec"]["command"]
    ]
    assert said_by(install, words) == "ok: nothing runs at 127.0.0.1:8001 any more\n"
    install.triton.send_signal(signal.SIGTERM)
    install.triton.wait(DEADLINE_S)
    install.api.send_signal(signal.SIGTERM)
    assert install.api.wait(DEADLINE_S) == 0


def said_by(install: Install, words: list[str]) -> str:
    """Return what a command says that is run in the model's pod."""
    return install.box.run(install.model, install.model.main, words).communicate(timeout=DEADLINE_S)[0]


def _without_tls(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("--triton-tls")]


def _secret(folder: Path, name: str) -> dict[str, Any]:
    files = {"tls.crt": f"{name}.crt", "tls.key": f"{name}.key", "ca.crt": "ca.crt"}
    data = {key: base64.b64encode((folder / file).read_bytes()).decode() for key, file in files.items()}
    metadata = {"name": f"{name}-tls", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}
