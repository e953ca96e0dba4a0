"""What pods may do, who may talk to whom, where secrets go."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.options import settings_of_environment
from frontend.settings import Settings
from tests.helm.cases import CASES, SHAPES, case, values_of, with_named_secrets
from tests.helm.chart import PodTemplate, Values, pods, render
from tests.helm.pod_security import violations

WRITABLE = {"/tmp", "/home/conch"}


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_has_rights_or_a_token(name: str) -> None:
    rendered = render(CASES[name])
    assert not {each["kind"] for each in rendered.objects} & {
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    }
    for account in rendered.of_kind("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for pod in pods(rendered):
        assert pod.spec["automountServiceAccountToken"] is False


def test_pods_have_an_account_that_exists() -> None:
    for settings, name in (({}, "demo-pods"), ({"create": False}, "default"), ({"create": False, "name": "x"}, "x")):
        rendered = render({"serviceAccount": settings})
        assert {pod.spec["serviceAccountName"] for pod in pods(rendered)} == {name}
        assert bool(rendered.of_kind("ServiceAccount")) is (name == "demo-pods")


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"nodes-values", "plain-values"}))
def test_every_pod_meets_the_restricted_standard(name: str) -> None:
    for pod in pods(render(CASES[name])):
        assert violations(pod) == [], pod.owner


def test_only_a_named_value_leaves_the_standard() -> None:
    found = {violation for pod in pods(case("nodes")) for violation in violations(pod)}
    assert found == {"capability IPC_LOCK"}  # multinode.ipcLock
    found = {violation for pod in pods(case("plain")) for violation in violations(pod)}
    assert found == {"volume hostPath"}  # cache.type hostPath
    values = values_of("nodes")
    values["multinode"]["ipcLock"] = False
    assert not [violation for pod in pods(render(values)) for violation in violations(pod)]


def test_a_folder_of_the_nodes_must_be_there_for_a_cluster_would_make_one_that_only_root_can_write() -> None:
    paths = [
        volume["hostPath"] for pod in pods(case("plain")) for volume in pod.spec["volumes"] if "hostPath" in volume
    ]
    assert paths == [{"path": "/srv/models", "type": "Directory"}]


@pytest.mark.parametrize("name", SHAPES)
def test_root_file_systems_are_read_only_and_written_folders_are_volumes(name: str) -> None:
    for pod in pods(render(CASES[name])):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        for container in pod.containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert set(mounts) >= WRITABLE
            assert {"HOME", "XDG_CACHE_HOME"} <= {each["name"] for each in container["env"]}
            for mount in mounts.values():
                kind = next(key for key in volumes[mount["name"]] if key != "name")
                is_read = kind in ("secret", "configMap") or mount["name"] == "source"
                is_cache = mount["name"] == "models" and container is pod.main
                assert mount.get("readOnly", False) is (is_read or is_cache)


@pytest.mark.parametrize("name", ["cpu", "gpu", "nodes"])
def test_secrets_are_named_and_never_read_by_the_chart(name: str) -> None:
    rendered = render(with_named_secrets(values_of(name)))
    assert rendered.of_kind("Secret") == []
    for pod in pods(rendered):
        for container in pod.containers:
            for variable in container.get("env", []):
                assert not (variable["name"].endswith(("TOKEN", "KEY", "PASSWORD")) and "value" in variable)


def test_secrets_are_files_where_the_program_can_read_a_file() -> None:
    frontend = next(pod for pod in pods(case("cpu")) if pod.owner == "Deployment/demo-frontend")
    volumes = {
        volume["name"]: volume["secret"]["secretName"] for volume in frontend.spec["volumes"] if "secret" in volume
    }
    assert volumes == {"keys": "api-keys", "tls": "api-tls"}
    arguments = frontend.main["args"]
    assert "--key-file=/etc/conch/keys/keys.json" in arguments
    assert "redis" not in " ".join(arguments)
    [variable] = [each for each in frontend.main["env"] if each["name"] == "CONCH_REDIS_URL"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "url"}
    url = "redis://:password@redis:6379/0"
    assert settings_of_environment({variable["name"]: url}, Settings()).redis_url == url


@pytest.mark.parametrize(
    ("values", "option", "variables"),
    [
        ({}, [], []),
        ({"replicas": 2}, ["--store=none"], []),
        ({"autoscaling": {"enabled": True}}, ["--store=none"], []),
        ({"store": {"place": "/data/store.db"}}, ["--store=/data/store.db"], []),
        ({"store": {"place": "none"}, "replicas": 2}, ["--store=none"], []),
        ({"store": {"existingSecret": "store"}, "replicas": 2}, [], ["CONCH_STORE"]),
    ],
)
def test_conversations_are_stored_where_all_frontends_find_them(
    values: Values, option: list[str], variables: list[str]
) -> None:
    [pod] = [pod for pod in pods(render({"frontend": values})) if pod.owner == "Deployment/demo-frontend"]
    assert [word for word in pod.main["args"] if word.startswith("--store")] == option
    named = [each for each in pod.main["env"] if each["name"] == "CONCH_STORE"]
    assert [each["name"] for each in named] == variables
    if named:
        assert named[0]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "url"}
        url = "postgresql://conch:password@postgres/conch"
        assert settings_of_environment({"CONCH_STORE": url}, Settings()).store == url


def test_only_frontends_and_prometheus_reach_a_model() -> None:
    policy = render().one("NetworkPolicy", "demo-demo")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    assert set(by_port) == {"grpc", "metrics"}
    [frontends] = by_port["grpc"]
    assert frontends["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "frontend"
    assert frontends["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "demo"
    assert by_port["metrics"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert policy["egress"] == []


def test_others_may_call_models_where_the_values_say_so() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "batch"}}}
    policy = render({"networkPolicy": {"modelsFrom": [peer]}}).one("NetworkPolicy", "demo-demo")["spec"]
    assert policy["ingress"][0]["from"][1:] == [peer]


def test_the_frontend_reaches_names_models_and_the_values_addresses() -> None:
    redis = {"ports": [{"port": 6379}]}
    policy = render({"networkPolicy": {"frontendEgress": [redis]}}).one("NetworkPolicy", "demo-frontend")["spec"]
    dns, models, added = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert dns["to"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ]
    assert models["ports"] == [{"port": 8001}]
    assert models["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "model"
    assert added == redis
    api, operations = policy["ingress"]
    assert api == {"ports": [{"port": "api"}]}
    assert operations["from"]


def test_dns_may_be_answered_from_anywhere_where_the_values_say_so() -> None:
    for policy in render({"networkPolicy": {"dnsTo": []}}).of_kind("NetworkPolicy"):
        assert all("to" not in rule for rule in policy["spec"]["egress"] if rule["ports"][0]["port"] == 53)


@pytest.mark.parametrize("name", ["default", "gpu", "sidecar"])
def test_no_folder_of_a_pod_fills_the_disk_of_its_node(name: str) -> None:
    for pod in pods(case(name)):
        sizes = [volume["emptyDir"].get("sizeLimit") for volume in pod.spec["volumes"] if "emptyDir" in volume]
        assert sizes and all(sizes), pod.owner


def test_the_api_can_be_closed_to_all_but_some_and_the_test() -> None:
    api = case("scaled").one("NetworkPolicy", "demo-frontend")["spec"]["ingress"][0]
    named, test = api["from"]
    assert named == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
    [pod] = [pod for pod in pods(case("scaled")) if pod.owner == "Pod/demo-test-api"]
    assert test["podSelector"]["matchLabels"].items() <= pod.labels.items()


def test_ranks_of_a_group_reach_only_each_other() -> None:
    policy = case("nodes").one("NetworkPolicy", "demo-llama-405b")["spec"]
    group = {"podSelector": policy["podSelector"]}
    assert {"from": [group]} in policy["ingress"]
    assert policy["egress"][0] == {"to": [group]}
    assert {port["port"] for port in policy["egress"][1]["ports"]} == {53}
    assert policy["egress"][2:] == [{"ports": [{"protocol": "TCP", "port": 443}]}]  # its leader downloads


def test_only_models_that_download_reach_the_world() -> None:
    https = {"ports": [{"protocol": "TCP", "port": 443}]}
    policies = {each["metadata"]["name"]: each["spec"]["egress"] for each in case("gpu").of_kind("NetworkPolicy")}
    assert {name for name, egress in policies.items() if https in egress} == {"demo-llama-70b", "demo-qwen-7b"}
    assert policies["demo-qwen-32b"] == []  # it has a finished engine
    from_claim = render(values_of("plain") | {"networkPolicy": {"enabled": True}})
    assert from_claim.one("NetworkPolicy", "demo-qwen")["spec"]["egress"] == []


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"plain-values"}))
def test_every_pod_has_a_policy_for_both_directions(name: str) -> None:
    rendered = render(CASES[name])
    for pod in pods(rendered):
        assert [policy for policy in rendered.of_kind("NetworkPolicy") if _selects(policy, pod)], pod.owner
    for policy in rendered.of_kind("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_policies_can_be_left_to_others() -> None:
    assert case("plain").of_kind("NetworkPolicy") == []


def _selects(policy: dict[str, Any], pod: PodTemplate) -> bool:
    return bool(policy["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items())
