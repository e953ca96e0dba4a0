"""A double of a Kubernetes API server: as much of its HTTP API as Helm asks for."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.helm.chart import KubernetesObject
from tests.helm.cluster import VERSION, Cluster, Refused

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
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "leaderworkerset.x-k8s.io/v1": {"leaderworkersets": "LeaderWorkerSet"},
    "monitoring.coreos.com/v1": {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"},
    "networking.k8s.io/v1": {"ingresses": "Ingress", "networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}


class _Handler(BaseHTTPRequestHandler):
    """Kubernetes' HTTP API of one cluster."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer leaves in two pieces
    cluster: Cluster

    def do_GET(self) -> None:
        path, query = self._asked()
        match [part for part in path.split("/") if part]:
            case ["version"]:
                self._answer({"major": "1", "minor": VERSION.partition(".")[2], "gitVersion": f"v{VERSION}.0"})
            case ["api"]:
                self._answer({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                self._answer(_groups())
            case ["openapi", "v3"]:
                self._answer(
                    {"paths": {_root(api): {"serverRelativeURL": f"/openapi/v3/{_root(api)}"} for api in KINDS}}
                )
            case ["openapi", "v3", "api" | "apis", *api]:
                self._answer(_openapi("/".join(api)))
            case ["api" | "apis", *api] if "/".join(api) in KINDS:
                self._answer(_resources("/".join(api)))
            case _:
                self._read(path, query)

    def _read(self, path: str, query: dict[str, str]) -> None:
        kind, name = self._kind_and_name(path)
        if name:
            self._carry_out(lambda: self.cluster.get(kind, name))
            return
        version = len(self.cluster.events)
        items = self.cluster.listed(kind, query.get("labelSelector", ""))
        api = next(api for api, kinds in KINDS.items() if kind in kinds.values())
        about: KubernetesObject = {"apiVersion": api, "metadata": {"resourceVersion": str(version)}}
        if "watch" not in query:
            self._answer({"kind": f"{kind}List", **about, "items": items})
        elif query.get("sendInitialEvents") == "true":
            about["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
            self._watch(kind, version, [*(("ADDED", each) for each in items), ("BOOKMARK", {"kind": kind, **about})])
        else:
            self._watch(kind, int(query["resourceVersion"]))

    def do_POST(self) -> None:
        self._carry_out(lambda: self.cluster.put(self._body(), is_new=True), HTTPStatus.CREATED)

    def do_PUT(self) -> None:
        self._carry_out(lambda: self.cluster.put(self._body(), is_new=False))

    def do_PATCH(self) -> None:
        _, query = self._asked()
        assert self.headers["Content-Type"] == "application/apply-patch+yaml", "Helm 4 applies server-side"
        is_forced = query.get("force") == "true"
        self._carry_out(lambda: self.cluster.apply(self._body(), query["fieldManager"], is_forced=is_forced))

    def do_DELETE(self) -> None:
        self._body()
        kind, name = self._kind_and_name(self._asked()[0])
        self._carry_out(lambda: self.cluster.delete(kind, name))

    def _asked(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        return url.path, {name: values[0] for name, values in parse_qs(url.query).items()}

    def _kind_and_name(self, path: str) -> tuple[str, str]:
        """Return the kind that a path is about, and the name of the object, empty if it is about all of them."""
        before, _, after = path.partition("/namespaces/")
        _, plural, *name = after.split("/")
        return KINDS[before.removeprefix("/apis/").removeprefix("/api/")][plural], "".join(name)

    def _body(self) -> Any:
        return yaml.load(self.rfile.read(int(self.headers.get("Content-Length") or 0)), yaml.CSafeLoader)

    def _carry_out(self, work: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        try:
            self._answer(work(), status)
        except Refused as exc:
            self._answer(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "reason": exc.reason,
                    "message": str(exc),
                    "code": exc.status,
                },
                exc.status,
            )

    def _answer(self, body: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _watch(self, kind: str, version: int, first: Sequence[tuple[str, KubernetesObject]] = ()) -> None:
        """Tell what happens to objects of a kind, for as long as somebody listens."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        events: Sequence[tuple[str, KubernetesObject]] = first
        with contextlib.suppress(ConnectionError):
            while True:
                for what, body in events:
                    if body["kind"] == kind:
                        self.wfile.write(json.dumps({"type": what, "object": body}).encode() + b"\n")
                events = self.cluster.since(version)
                version += len(events)
                if not events:
                    return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


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
def api_server(cluster: Cluster) -> Iterator[str]:
    """Serve a cluster on loopback within the block; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": cluster}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        cluster.close()
        server.shutdown()
        server.server_close()
        thread.join()
