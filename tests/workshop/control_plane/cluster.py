"""A Kubernetes control plane on loopback: etcd, API server, scheduler, controllers. It has no nodes."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.helm.chart import KubernetesObject
from tests.launching import free_port
from tests.workshop.control_plane.api import Api, ApiError, wait_for
from tests.workshop.control_plane.binaries import LWS_MANAGER, Programs

_TOKEN = "control-plane"  # of a server on loopback that ends with this program
# Read from etcd, which keeps the whole history: a scenario reads what happened after it happened.
_UNCACHED = "pods#0,endpointslices.discovery.k8s.io#0"

_POD: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
_SMALL_GROUP: KubernetesObject = {
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "small"},
    "spec": {"leaderWorkerTemplate": {"workerTemplate": _POD}},
}


@contextlib.contextmanager
def control_plane(programs: Programs, folder: Path) -> Iterator[Api]:
    """Run a control plane within the block, with its files and logs in `folder`."""
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: object) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("w", encoding="utf-8"))
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)

        port = free_port()
        key, certificate, authority = _certificates(folder)
        tokens = folder / "tokens.csv"
        tokens.write_text(f'{_TOKEN},admin,admin,"system:masters"\n', encoding="utf-8")
        api = Api(_kubeconfig(folder, port, authority))
        etcd = f"http://127.0.0.1:{free_port()}"
        start(
            "etcd",
            programs.etcd,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
            "--unsafe-no-fsync",
        )
        start(
            "kube-apiserver",
            programs.folder / "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--etcd-compaction-interval=0",
            f"--watch-cache-sizes={_UNCACHED}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--default-not-ready-toleration-seconds=2",
            "--default-unreachable-toleration-seconds=2",
        )
        # Helm reads it. A server that was built by a newer Go than the tree names may be unable to write it.
        _wait_until_ready(lambda: api.request("GET", "/openapi/v2"), folder / "kube-apiserver.log")
        start(
            "kube-controller-manager",
            programs.folder / "kube-controller-manager",
            f"--kubeconfig={api.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={authority}",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
            "--pvclaimbinder-sync-period=1s",
            "--horizontal-pod-autoscaler-sync-period=1h",
        )
        start(
            "kube-scheduler",
            programs.folder / "kube-scheduler",
            f"--kubeconfig={api.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        if not programs.why_no_lws:
            assert programs.lws_source is not None
            config, webhook_port = _lws_config(folder)
            _create_lws(api, programs.lws_source, webhook_port, authority)
            start("lws", "env", f"KUBECONFIG={api.kubeconfig}", programs.folder / LWS_MANAGER, f"--config={config}")
            _wait_until_ready(lambda: api.create(_SMALL_GROUP, "default", dryRun="All"), folder / "lws.log")
        wait_for(lambda: api.get("ServiceAccount", "default", "default"), "controllers work")
        yield api


def _wait_until_ready(request: Callable[[], object], log: Path) -> None:
    def is_answered() -> bool:
        with contextlib.suppress(OSError, ApiError, http.client.HTTPException):
            return bool(request())
        return False

    wait_for(is_answered, f"a server answers; see {log}", 90)


def _certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Key and certificate of all servers on loopback, and the certificate of their authority."""

    def openssl(name: str, *options: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", f"/CN={name}"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run([*command, *files, *options], cwd=folder, check=True, capture_output=True)

    openssl("authority")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    openssl("tls", "-CA", "authority.crt", "-CAkey", "authority.key", "-addext", names)
    return folder / "tls.key", folder / "tls.crt", folder / "authority.crt"


def _kubeconfig(folder: Path, port: int, authority: Path) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "loopback", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": "admin"}}],
        "current-context": "loopback",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _lws_config(folder: Path) -> tuple[Path, int]:
    """Configuration of the LeaderWorkerSet controller, and the port of its webhooks."""
    port = free_port()
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
    }
    path = folder / "lws.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path, port


def _create_lws(api: Api, source: Path, port: int, authority: Path) -> None:
    """Create the controller's CRDs and its webhooks, which are called at a port on loopback."""
    for path in sorted((source / "config" / "crd" / "bases").glob("*.yaml")):
        crd = api.create(yaml.safe_load(path.read_text(encoding="utf-8")))
        wait_for(functools.partial(_is_served, api, crd["metadata"]["name"]), f"{path.stem} is served")
    bundle = base64.b64encode(authority.read_bytes()).decode()
    for hook in yaml.safe_load_all((source / "config" / "webhook" / "manifests.yaml").read_text(encoding="utf-8")):
        for each in hook["webhooks"]:
            url = f"https://127.0.0.1:{port}{each['clientConfig']['service']['path']}"
            each["clientConfig"] = {"url": url, "caBundle": bundle}
            if each["rules"][0]["resources"] == ["pods"]:
                each["objectSelector"] = {
                    "matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]
                }
        api.create(hook)


def _is_served(api: Api, crd: str) -> bool:
    found = api.get("CustomResourceDefinition", crd) or {}
    conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions") or []}
    return conditions.get("Established") == "True"
