"""Releases, as Helm itself makes them at a double of an API server. Points 14, 31, 36, 37 and 42 of the checklist."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

from frontend.caller import Role
from frontend.gateway.key_file import hash_of, parse_keys
from frontend.settings import Settings
from tests.helm.api_server import api_server
from tests.helm.cases import CASES, SHAPES, values_of, with_gpu_model
from tests.helm.chart import CHART, NAMESPACE, RELEASE, Values, pods, render
from tests.helm.cluster import Cluster, Refused

CLAIM = "PersistentVolumeClaim"
# They leave the standard by name, which test_security.py shows.
RESTRICTED = sorted(set(SHAPES) - {"nodes-values", "plain-values"})


class Releases:
    """Helm, with a cluster."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster = cluster
        context = {"cluster": "double", "user": "nobody", "namespace": NAMESPACE}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "double", "context": context}],
            "current-context": "double",
        }
        self.helm = helm_python.Config(
            namespace=NAMESPACE, kubeconfig_content=json.dumps(config), storage_driver="memory", burst_limit=1000
        )

    def install(self, values: Values) -> None:
        self.helm.install(CHART, RELEASE, values, namespace=NAMESPACE)

    def upgrade(self, values: Values) -> None:
        self.helm.upgrade(CHART, RELEASE, values, namespace=NAMESPACE)

    def claims(self) -> set[tuple[str, str]]:
        return {each for each in self.cluster.names() if each[0] == CLAIM}

    def rendered(self, values: Values) -> set[tuple[str, str]]:
        """Return what should be there with these values: a test's pod is not, until it is run."""
        return {
            (each["kind"], each["metadata"]["name"])
            for each in render(values).objects
            if "helm.sh/hook" not in each["metadata"].get("annotations", {})
        }


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Releases]:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Helm keeps what it has learnt of a cluster
    cluster = Cluster()
    with api_server(cluster) as url:
        found = Releases(cluster, url)
        yield found
        found.helm.close()


@pytest.mark.parametrize("name", RESTRICTED)
def test_31_42_every_shape_is_installed_under_the_restricted_standard_and_leaves_nothing(
    releases: Releases, name: str
) -> None:
    values = CASES[name]
    releases.install(values)
    assert releases.cluster.names() == releases.rendered(values)
    releases.helm.uninstall(RELEASE)
    assert releases.cluster.names() == {each for each in releases.rendered(values) if each[0] == CLAIM}


def test_42_upgrade_and_rollback_leave_no_object_behind(releases: Releases) -> None:
    first: Values = {}
    second = values_of("cpu")
    releases.install(first)
    before = {key: stored.body["spec"] for key, stored in releases.cluster.objects.items() if key[0] == "Deployment"}
    releases.upgrade(second)
    assert releases.cluster.names() == releases.rendered(second)
    releases.helm.rollback(RELEASE, version=1)
    assert releases.cluster.names() == releases.rendered(first)
    assert {key: releases.cluster.get(*key)["spec"] for key in before} == before
    releases.helm.uninstall(RELEASE)
    assert not releases.cluster.names()


def test_upgrades_and_rollbacks_keep_tritons_key_and_every_pod_takes_it(releases: Releases) -> None:
    def key() -> str:
        secret = releases.cluster.get("Secret", f"{RELEASE}-triton-key")
        return base64.b64decode(secret["data"]["key"]).decode()

    releases.install({})
    first = key()
    assert Settings(triton_key=first).triton_key == first, "it is as long as a key must be"
    releases.upgrade({"commonLabels": {"a": "b"}})
    assert key() == first
    releases.helm.rollback(RELEASE, version=1)
    assert key() == first
    releases.helm.uninstall(RELEASE)
    releases.install({})
    assert key() != first


def test_upgrades_keep_the_api_key_and_its_file_has_only_the_hash(releases: Releases) -> None:
    def data() -> dict[str, str]:
        secret = releases.cluster.get("Secret", f"{RELEASE}-api-keys")["data"]
        return {name: base64.b64decode(text).decode() for name, text in secret.items()}

    releases.install({})
    first = data()
    [key] = parse_keys(first["keys.json"].encode(), Path("keys.json"))
    assert (key.name, key.role, key.sha256) == ("default", Role.USER, hash_of(first["api-key"]))
    assert first["api-key"] not in first["keys.json"]
    releases.upgrade({"commonLabels": {"a": "b"}})
    assert data() == first
    releases.upgrade({"frontend": {"auth": {"allowAnonymous": True}}})
    assert ("Secret", f"{RELEASE}-api-keys") not in releases.cluster.names()
    releases.upgrade({"frontend": {}})  # Helm keeps the former values if there are none
    assert data() != first


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


def test_37_the_cache_outlives_a_release_and_the_next_one_takes_it(releases: Releases) -> None:
    releases.install(with_gpu_model())
    [claim] = releases.claims()
    uid = releases.cluster.get(*claim)["metadata"]["uid"]
    releases.helm.uninstall(RELEASE)
    assert releases.cluster.names() == {claim}
    releases.install(with_gpu_model())
    assert releases.claims() == {claim}
    assert releases.cluster.get(*claim)["metadata"]["uid"] == uid


def test_another_mode_of_the_cache_makes_a_second_claim_and_keeps_the_first(releases: Releases) -> None:
    """A claim that stayed Pending, on storage without ReadWriteMany, could not be changed."""
    releases.install(with_gpu_model())
    first = releases.claims()
    releases.upgrade(with_gpu_model() | {"cache": {"type": "pvc", "accessModes": ["ReadWriteOnce"]}})
    [second] = releases.claims() - first
    assert first < releases.claims()
    assert releases.cluster.get(*second)["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_14_an_upgrade_leaves_an_autoscaler_its_number(releases: Releases) -> None:
    key = "Deployment", f"{RELEASE}-frontend"
    values = {"frontend": {"autoscaling": {"enabled": True}}}
    releases.install(values)
    releases.cluster.scale(*key, 5)
    releases.upgrade(values | {"commonLabels": {"a": "b"}})
    assert releases.cluster.get(*key)["spec"]["replicas"] == 5


def test_41_helm_test_makes_its_pod_and_takes_it_away(releases: Releases) -> None:
    releases.install({})
    before = releases.cluster.names()
    releases.helm.test(RELEASE, timeout=60)
    assert releases.cluster.names() == before


def test_the_double_refuses_objects_that_a_cluster_refuses(releases: Releases) -> None:
    releases.install(with_gpu_model())
    cluster = releases.cluster
    for kind, path, value, rule in (
        ("Deployment", ("spec", "selector", "matchLabels", "a"), "b", "spec.selector: field is immutable"),
        ("Service", ("spec", "unknown"), 1, "unknown"),
    ):
        name = next(name for each, name in cluster.names() if each == kind)
        body = json.loads(json.dumps({key: value for key, value in cluster.get(kind, name).items() if key != "status"}))
        inner = body
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value
        with pytest.raises(Refused, match=rule):
            cluster.put(body, is_new=False)
    deployment = json.loads(json.dumps(cluster.get("Deployment", f"{RELEASE}-frontend")))
    deployment["spec"]["template"]["spec"]["hostNetwork"] = True
    with pytest.raises(Refused, match="violates PodSecurity: hostNetwork"):
        cluster.put(deployment, is_new=False)
    cluster.scale("Deployment", f"{RELEASE}-frontend", 5)
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"{RELEASE}-frontend"}}
    with pytest.raises(Refused, match="conflict with autoscaler"):
        cluster.apply(deployment | {"spec": {"replicas": 2}}, "helm", is_forced=False)
