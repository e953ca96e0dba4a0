"""The keys of a release: made at the first install, kept by upgrades, and given to the programs by their Secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest

from frontend.caller import KeyRole
from frontend.gateway.key_file import hash_of, parse_keys
from frontend.settings import Settings
from tests.helm.api_server import Objects, api_server
from tests.helm.cases import CASES, SHAPES
from tests.helm.chart import CHART, NAMESPACE, RELEASE, Values, pods, render

SOURCE = {"existingClaim": "checkpoints", "path": "x"}


class Releases:
    """Helm, with a cluster."""

    def __init__(self, objects: Objects, url: str) -> None:
        self.objects = objects
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

    def upgrade(self, values: Values, *, reuse_values: bool = False) -> str:
        """Upgrade, and return the notes."""
        found = self.helm.upgrade(CHART, RELEASE, values, namespace=NAMESPACE, reuse_values=reuse_values)
        return str(found["notes"])

    def secret(self, name: str) -> dict[str, str]:
        """Return the contents of a Secret; empty: there is none."""
        found = self.objects.get(self._secret_path(name), {"data": {}})
        return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}

    def change_secret(self, name: str, data: dict[str, str]) -> None:
        """Replace the contents of a Secret, as a user of kubectl does."""
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        self.objects[self._secret_path(name)]["data"] = encoded

    def spec(self, deployment: str) -> Any:
        """Return the spec of a Deployment."""
        return self.objects[f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"]["spec"]

    def _secret_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/secrets/{RELEASE}-{name}"


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
    for auth in ({"allowAnonymous": True}, {"key": "other.json"}, {"allowAnonymous": False}):
        releases.upgrade({"frontend": {"auth": auth}})
        assert releases.secret("api-keys") == api_keys, auth


def test_changes_of_the_keys_outlive_upgrades_rollbacks_and_the_release(releases: Releases) -> None:
    """A rollback brought the former keys back: clients with a newer key were refused."""
    releases.install({})
    changed = {"triton-key": {"key": "t" * 43}, "api-keys": {**releases.secret("api-keys"), "keys.json": "two keys"}}

    def assert_changed() -> None:
        assert {name: releases.secret(name) for name in changed} == changed

    for name, data in changed.items():
        releases.change_secret(name, data)
    releases.upgrade({"commonLabels": {"a": "b"}})
    assert_changed()
    releases.helm.rollback(RELEASE, version=1)
    assert_changed()
    releases.helm.uninstall(RELEASE)
    assert_changed()
    releases.install({})
    assert_changed()


def test_the_notes_name_a_model_whose_pods_an_upgrade_ends(releases: Releases) -> None:
    """A model under a new `name` is another Deployment, so it answers 503 until its pods are ready."""
    releases.install(
        {"models": [{"name": "a", "servedName": "demo"}, {"name": "demo", "servedName": "b", "source": SOURCE}]}
    )
    models = [{"name": "new", "servedName": "demo"}, {"name": "demo", "servedName": "b", "source": SOURCE}]
    assert "REMOVED: a. The pods of these models end at once." in releases.upgrade({"models": models})
    assert "REMOVED" not in releases.upgrade({"models": models})


def test_a_smaller_cache_is_refused_before_anything_is_changed(releases: Releases) -> None:
    releases.install({"cache": {"type": "pvc", "size": "2Gi"}})
    [claim] = [each for path, each in releases.objects.items() if "/persistentvolumeclaims/" in path]
    claim["status"] = {"capacity": {"storage": "2Gi"}}
    with pytest.raises(
        helm_python.HelmError, match=r"cache\.size 1024Mi: the claim has 2Gi, and a claim cannot shrink"
    ):
        releases.upgrade({"cache": {"type": "pvc", "size": "1024Mi"}, "frontend": {"replicas": 2}})
    releases.upgrade({"cache": {"type": "pvc", "size": "3Gi"}})


def test_a_secret_without_an_entry_is_refused(releases: Releases) -> None:
    """Pods would wait for the entry for ever."""
    releases.install({})
    releases.change_secret("api-keys", {"api-key": "a"})
    with pytest.raises(helm_python.HelmError, match=r"the Secret demo-api-keys has no entry keys\.json"):
        releases.upgrade({})


# --- releases of former charts ----------------------------------------------------------------------------------------

FORMER = tuple(sorted((Path(__file__).parent / "former").glob("*.yaml")))
_SECRET = """\
apiVersion: v1
kind: Secret
metadata: {{name: demo-{name}}}
data: {data}
"""


def former_chart(folder: Path, values: Path) -> Path:
    """Write a chart with the values of a former one, and with its Secrets: those of da9c4552 were two."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: conch\nversion: 0.0.1\n")
    (folder / "values.yaml").write_text(values.read_text(encoding="utf-8"))
    secrets = {"triton-key": {"key": "dHJpdG9u"}, "api-keys": {"api-key": "YQ==", "keys.json": "Yg=="}}
    for name, data in secrets.items() if "da9c4552" in values.name else [("triton-key", secrets["triton-key"])]:
        (folder / "templates" / f"{name}.yaml").write_text(_SECRET.format(name=name, data=json.dumps(data)))
    return folder


@pytest.mark.parametrize("values", FORMER, ids=lambda path: path.stem)
def test_a_release_of_a_former_chart_keeps_its_keys_there_and_back(
    values: Path, releases: Releases, tmp_path: Path
) -> None:
    """With --reuse-values a new value was missing: Helm failed, or the frontend got an option without its value."""
    releases.helm.install(former_chart(tmp_path / "chart", values), RELEASE, {}, namespace=NAMESPACE)
    releases.upgrade({}, reuse_values=True)
    for deployment in render().of_kind("Deployment"):
        assert releases.spec(deployment["metadata"]["name"]) == deployment["spec"]
    keys = {name: releases.secret(name) for name in ("triton-key", "api-keys")}
    assert keys["triton-key"] == {"key": "triton"}
    assert "da9c4552" not in values.name or keys["api-keys"] == {"api-key": "a", "keys.json": "b"}
    releases.helm.rollback(RELEASE, version=1)
    releases.upgrade({}, reuse_values=True)
    assert {name: releases.secret(name) for name in ("triton-key", "api-keys")} == keys


def test_the_keys_of_a_former_chart_outlive_a_rollback_to_one_without_them(releases: Releases, tmp_path: Path) -> None:
    later, first = FORMER
    releases.helm.install(former_chart(tmp_path / first.stem, first), RELEASE, {}, namespace=NAMESPACE)
    releases.helm.upgrade(former_chart(tmp_path / later.stem, later), RELEASE, {}, namespace=NAMESPACE)
    releases.upgrade({})
    releases.helm.rollback(RELEASE, version=1)
    releases.upgrade({})
    assert releases.secret("api-keys") == {"api-key": "a", "keys.json": "b"}


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
