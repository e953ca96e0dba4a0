"""A client of a Kubernetes API server."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from tests.helm.api_server import KINDS
from tests.helm.chart import KubernetesObject
from tests.waiting import wait_until

# By kind: API and plural name.
RESOURCES = {kind: (api, plural) for api, kinds in KINDS.items() for plural, kind in kinds.items()} | {
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "MutatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    "Namespace": ("v1", "namespaces"),
    "Node": ("v1", "nodes"),
    "PersistentVolume": ("v1", "persistentvolumes"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses"),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
}
MERGE = "application/merge-patch+json"
_TIMEOUT_S = 30.0


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One API server. Threads may share it: each has its own connection."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        self.kubeconfig = kubeconfig
        self._address = urlsplit(cluster["server"])
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._ssl = ssl.create_default_context(cadata=_content(cluster, "certificate-authority"))
        if certificate := _content(user, "client-certificate"):
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(certificate + "\n" + _content(user, "client-key"))
                file.flush()
                self._ssl.load_cert_chain(file.name)
        self._of_thread = threading.local()

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send one request and return the answer's JSON.

        Raises:
            ApiError: the server refuses it.
        """
        return json.loads(self._text(method, path, body, content_type))

    def path(self, kind: str, name: str = "", namespace: str = "", **query: Any) -> str:
        """Path of an object, or of all objects of a kind."""
        api, plural = RESOURCES[kind]
        scope = f"/namespaces/{namespace}" if namespace else ""
        parameters = f"?{urlencode(query)}" if query else ""
        return f"/{'apis' if '/' in api else 'api'}/{api}{scope}/{plural}{f'/{name}' if name else ''}{parameters}"

    def create(self, body: KubernetesObject, namespace: str = "", **query: Any) -> KubernetesObject:
        """Create an object; its API version may be missing."""
        body = {"apiVersion": RESOURCES[body["kind"]][0]} | body
        found: KubernetesObject = self.request("POST", self.path(body["kind"], "", namespace, **query), body)
        return found

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[KubernetesObject]:
        """Objects of a kind, of one namespace or of all."""
        query = {"labelSelector": selector} if selector else {}
        found: list[KubernetesObject] = self.request("GET", self.path(kind, "", namespace, **query))["items"]
        return found

    def get(self, kind: str, name: str, namespace: str = "") -> KubernetesObject | None:
        """One object, None if it does not exist."""
        try:
            found: KubernetesObject = self.request("GET", self.path(kind, name, namespace))
        except ApiError as exc:
            if exc.status == http.client.NOT_FOUND:
                return None
            raise
        return found

    def patch(self, kind: str, name: str, body: Any, namespace: str = "", subresource: str = "") -> None:
        """Merge these fields into an object."""
        path = self.path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        self.request("PATCH", path, body, MERGE)

    def delete(self, kind: str, name: str, namespace: str = "", options: Any = None) -> None:
        """Delete an object, which may already be gone."""
        try:
            self.request("DELETE", self.path(kind, name, namespace), options)
        except ApiError as exc:
            if exc.status != http.client.NOT_FOUND:
                raise

    def version(self, kind: str, namespace: str) -> str:
        """Resource version of now."""
        return str(self.request("GET", self.path(kind, "", namespace))["metadata"]["resourceVersion"])

    def history(self, kind: str, namespace: str, since: str) -> Iterator[tuple[str, KubernetesObject]]:
        """Every change of the objects of a kind since a resource version, in order."""
        query = {"watch": 1, "resourceVersion": since, "timeoutSeconds": 1}
        for line in self._text("GET", self.path(kind, "", namespace, **query)).splitlines():
            event = json.loads(line)
            yield event["type"], event["object"]

    def _text(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> str:
        if not hasattr(self._of_thread, "connection"):
            host, port = self._address.hostname or "", self._address.port
            self._of_thread.connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._ssl)
        connection: http.client.HTTPSConnection = self._of_thread.connection
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, content, self._headers | {"Content-Type": content_type})
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if answer.status >= http.client.BAD_REQUEST:
            raise ApiError(answer.status, json.loads(text)["message"] if text.startswith("{") else text)
        return text


def wait_for[Value](condition: Callable[[], Value], what: str, timeout_s: float = 60.0) -> Value:
    """Wait for a condition that asks the server, with a pause that leaves it time for its work."""
    return wait_until(condition, what, timeout_s, pause_s=0.1)


def _named(config: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    [found] = [each for each in config[section] if each["name"] == name]
    return dict(found)


def _content(settings: dict[str, Any], key: str) -> str:
    """Text of a file that a kubeconfig contains or names; empty if it does neither."""
    if f"{key}-data" in settings:
        return base64.b64decode(settings[f"{key}-data"]).decode()
    return Path(settings[key]).read_text(encoding="utf-8") if key in settings else ""
