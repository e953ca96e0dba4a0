"""The keys of a release: made at the first install, kept by upgrades, and given to the programs by their Secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

from frontend.caller import KeyRole
from frontend.gateway.key_file import hash_of, parse_keys
from frontend.settings import Settings
from tests.helm.api_server import Objects, api_server
from tests.helm.cases import CASES, SHAPES
from tests.helm.chart import CHART, NAMESPACE, RELEASE, Values, pods, render


class Releases:
    """Helm, with a cluster."""

    def __init__(self, objects: Objects, url: str) -> None:
        self._objects = objects
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "nobody"}}],
            "current-context": "double",
        }
        self.helm = helm_python.Config(
            namespace=NAMESPACE, kubeconfig_content=json.dumps(config), storage_driver="memory", burst_limit=1000
        )

    def install(self, values: Values) -> None:
        self.helm.install(CHART, RELEASE, values, namespace=NAMESPACE)

    def upgrade(self, values: Values) -> None:
        self.helm.upgrade(CHART, RELEASE, values, namespace=NAMESPACE)

    def secret(self, name: str) -> dict[str, str]:
        """Return the contents of a Secret; empty: there is none."""
        found = self._objects.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{RELEASE}-{name}", {"data": {}})
        return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Releases]:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Helm keeps what it has learnt of a cluster
    objects: Objects = {}
    with api_server(objects) as url:
        found = Releases(objects, url)
        yield found
        found.helm.close()


def test_upgrades_keep_both_keys_and_the_file_of_api_keys_has_only_the_hash(releases: Releases) -> None:
    releases.install({})
    [triton_key] = releases.secret("triton-key").values()
    assert Settings(triton_key=triton_key).triton_key == triton_key, "it is as long as a key must be"
    api_keys = releases.secret("api-keys")
    [key] = parse_keys(api_keys["keys.json"].encode(), Path("keys.json"))
    assert (key.name, key.role, key.sha256) == ("default", KeyRole.USER, hash_of(api_keys["api-key"]))
    assert api_keys["api-key"] not in api_keys["keys.json"]

    releases.upgrade({"commonLabels": {"a": "b"}})
    assert (releases.secret("triton-key"), releases.secret("api-keys")) == ({"key": triton_key}, api_keys)
    releases.upgrade({"frontend": {"auth": {"allowAnonymous": True}}})
    assert releases.secret("api-keys") == {}
    releases.upgrade({"frontend": {}})  # Helm keeps the former values if there are none
    assert releases.secret("api-keys")["api-key"] != api_keys["api-key"]


def test_only_an_explicit_value_lets_every_client_in() -> None:
    for auth, word in (({}, "--key-file=/etc/conch/keys/keys.json"), ({"allowAnonymous": True}, "--allow-anonymous")):
        [frontend] = [
            pod for pod in pods(render({"frontend": {"auth": auth}})) if pod.owner == "Deployment/demo-frontend"
        ]
        assert {"--key-file=/etc/conch/keys/keys.json", "--allow-anonymous"} & set(frontend.main["args"]) == {word}


@pytest.mark.parametrize("name", SHAPES)
def test_every_frontend_and_triton_takes_tritons_key_from_the_secret(name: str) -> None:
    for secret, values in (("demo-triton-key", {}), ("mine", {"tritonKey": {"existingSecret": "mine", "key": "k"}})):
        takers = set()
        for pod in pods(render(CASES[name] | values)):
            for container in pod.containers:
                named = [each["valueFrom"] for each in container["env"] if each["name"] == "CONCH_TRITON_KEY"]
                words = container.get("command", [])
                assert bool(named) is bool({"api", "triton"} & set(words[-1:])), container["name"]
                if named:
                    takers.add(container["name"])
                    assert named == [
                        {"secretKeyRef": {"name": secret, "key": values.get("tritonKey", {}).get("key", "key")}}
                    ]
        assert takers == {"frontend", "triton"}
