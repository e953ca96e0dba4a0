"""A double of a Kubernetes API server: it keeps what Helm applies, and gives it back to the chart's lookups.

It refuses nothing, and runs nothing. `tests/workshop/control_plane` installs the chart on a real one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from tests.helm.chart import KubernetesObject

VERSION = "1.34"
# By API, the plural name of each kind that the chart renders or Helm keeps its releases in.
KINDS = {
    "v1": {
        "configmaps": "ConfigMap",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
    "inference.networking.k8s.io/v1": {"inferencepools": "InferencePool"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "leaderworkerset.x-k8s.io/v1": {"leaderworkersets": "LeaderWorkerSet"},
    "monitoring.coreos.com/v1": {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"},
    "networking.k8s.io/v1": {"ingresses": "Ingress", "networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}


type Objects = dict[str, KubernetesObject]  # by the path of each


class _Handler(BaseHTTPRequestHandler):
    """As much of Kubernetes' HTTP API as an install and an upgrade ask for."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer leaves in two pieces
    objects: Objects

    def do_GET(self) -> None:
        match self._path.strip("/").split("/"):
            case ["version"]:
                self._answer({"major": "1", "minor": VERSION.partition(".")[2], "gitVersion": f"v{VERSION}.0"})
            case ["api"]:
                self._answer({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                self._answer(_groups())
            case ["openapi", "v3"]:
                paths = {_root(api): {"serverRelativeURL": f"/openapi/v3/{_root(api)}"} for api in KINDS}
                self._answer({"paths": paths})
            case ["openapi", "v3", "api" | "apis", *api]:
                self._answer(_openapi("/".join(api)))
            case ["api" | "apis", *api] if "/".join(api) in KINDS:
                self._answer(_resources("/".join(api)))
            case _ if self._path in self.objects:
                self._answer(self.objects[self._path])
            case ["api", "v1", "namespaces", _, plural] if plural in KINDS["v1"]:  # a watch ends at once
                items = [each for path, each in self.objects.items() if path.startswith(f"{self._path}/")]
                found = {"kind": f"{KINDS['v1'][plural]}List", "apiVersion": "v1", "items": items}
                is_watch = "watch=" in self.path
                self._answer({} if is_watch else found | {"metadata": {"resourceVersion": "1"}})
            case _:
                self._refuse()

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/apply-patch+yaml", "Helm 4 applies server-side"
        body = yaml.load(self.rfile.read(int(self.headers["Content-Length"])), yaml.CSafeLoader)
        self.objects[self._path] = body
        self._answer(body)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._path in self.objects:
            self._answer(self.objects.pop(self._path))
        else:
            self._refuse()

    def _refuse(self) -> None:
        about = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        self._answer(about, HTTPStatus.NOT_FOUND)

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self, body: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        with contextlib.suppress(ConnectionError):  # of a watch that Helm has ended
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _root(api: str) -> str:
    return f"apis/{api}" if "/" in api else f"api/{api}"


def _groups() -> dict[str, Any]:
    versions = [(api.partition("/")[0], {"groupVersion": api, "version": api.partition("/")[2]}) for api in KINDS]
    groups = [
        {"name": group, "versions": [version], "preferredVersion": version}
        for group, version in versions
        if group != "v1"
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resources(api: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
        for plural, kind in KINDS[api].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}


def _openapi(api: str) -> dict[str, Any]:
    """Return as much of an API's description as says that it checks fields itself."""
    group, _, version = api.rpartition("/")
    patches = {
        f"/{_root(api)}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "responses": {},
            }
        }
        for plural, kind in KINDS[api].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "double", "version": VERSION}, "paths": patches}


@contextlib.contextmanager
def api_server(objects: Objects) -> Iterator[str]:
    """Serve a cluster with these objects on loopback within the block; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": objects}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
