"""What users add to the chart's objects, and models as a map."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.cases import case, values_of, with_demo, with_gpu_model, with_named_secrets
from tests.helm.chart import pods, render
from tests.helm.test_builds import before_serving, pod_of_model
from tests.helm.validation import KUBERNETES_VERSIONS, errors

SIDECAR = {"name": "logs", "image": "registry.example.com/logs:1.0"}


def test_fields_of_the_pod_spec_replace_those_of_the_chart_in_every_pod_of_a_group() -> None:
    values = values_of("nodes")
    values["models"][0]["podSpec"] = {"schedulerName": "volcano", "terminationGracePeriodSeconds": 5}
    [frontend, leader, worker] = [pod for pod in pods(render(values)) if "test" not in pod.owner]
    assert "schedulerName" not in frontend.spec
    assert {(pod.spec["schedulerName"], pod.spec["terminationGracePeriodSeconds"]) for pod in (leader, worker)} == {
        ("volcano", 5)
    }
    assert leader.spec["securityContext"]["runAsNonRoot"] is True


def test_the_workload_of_a_model_takes_labels_and_annotations_and_its_pods_do_not() -> None:
    values = values_of("nodes")
    topology = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"}
    values["models"][0] |= {"labels": {"kueue.x-k8s.io/queue-name": "llm"}, "annotations": topology}
    rendered = render(values)
    [group] = rendered.of_kind("LeaderWorkerSet")
    assert group["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "llm"
    assert group["metadata"]["annotations"] == topology
    assert not [pod for pod in pods(rendered) if "kueue.x-k8s.io/queue-name" in pod.labels]


def test_containers_are_added_to_the_frontend_and_to_the_leader_of_a_group() -> None:
    values = values_of("nodes")
    added = {"extraContainers": [SIDECAR], "extraInitContainers": [SIDECAR | {"name": "first"}]}
    values["frontend"] = added
    values["models"][0] |= added
    containers = {pod.owner: [each["name"] for each in pod.containers] for pod in pods(render(values))}
    assert containers["Deployment/demo-frontend"] == ["first", "frontend", "logs"]
    leader = ["first", "download", "repository", "triton", "logs"]
    assert containers["LeaderWorkerSet/demo-llama-405b-group/leader"] == leader
    assert containers["LeaderWorkerSet/demo-llama-405b-group/worker"] == ["ranks"]


def test_variables_of_a_secret_are_added_to_every_container_of_the_frontend_or_of_a_model() -> None:
    values = values_of("nodes")
    values["frontend"] = {"extraEnvFrom": [{"secretRef": {"name": "proxy"}}]}
    values["models"][0]["extraEnvFrom"] = [{"prefix": "NCCL_", "configMapRef": {"name": "nccl", "optional": True}}]
    rendered = render(values)
    assert errors(rendered, KUBERNETES_VERSIONS[-1]) == []
    for pod in pods(rendered):
        expected = values["models"][0] if pod.owner.startswith("LeaderWorkerSet") else values["frontend"]
        for container in pod.containers if not pod.owner.startswith("Pod/") else []:
            assert container["envFrom"] == expected["extraEnvFrom"]


@pytest.mark.parametrize(
    ("resource", "expected"), [("nvidia.com/mig-3g.40gb", {"nvidia.com/mig-3g.40gb": "1"}), ("", {})]
)
def test_a_profile_names_the_resource_of_its_gpus(resource: str, expected: dict[str, str]) -> None:
    values = with_gpu_model() | {"resourceProfiles": {"h100": {"gpu": "h100", "gpuResource": resource}}}
    assert pod_of_model(render(values)).main["resources"]["limits"] == expected


def test_gpus_may_be_claimed_by_dynamic_resource_allocation() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-h100"}]
    values = with_gpu_model(podSpec={"resourceClaims": claims}, resources={"claims": [{"name": "gpu"}]})
    rendered = render(values | {"resourceProfiles": {"h100": {"gpu": "h100", "gpuResource": ""}}})
    pod = pod_of_model(rendered)
    assert pod.spec["resourceClaims"] == claims
    for container in pod.containers:
        assert container["resources"]["claims"] == [{"name": "gpu"}]


def test_models_may_be_a_map_by_name() -> None:
    model: dict[str, Any] = {"source": {"existingClaim": "checkpoints", "path": "x"}, "replicas": 2}
    as_list = render(with_named_secrets({"models": [{"name": "a", **model}, {"name": "demo"}]}))
    assert render(with_named_secrets({"models": {"demo": {}, "a": model}})) == as_list


@pytest.mark.parametrize("change", [{"accessModes": ["ReadWriteOnce"]}, {"storageClassName": "fast"}])
def test_another_class_or_mode_of_the_cache_makes_a_new_claim(change: dict[str, Any]) -> None:
    """A claim keeps both for ever: the cluster refused an upgrade after the advice to change them."""

    def claim(values: dict[str, Any]) -> str:
        rendered = render(with_gpu_model() | {"cache": {"type": "pvc", **values}})
        [found] = rendered.of_kind("PersistentVolumeClaim")
        [mounted] = [each for each in pod_of_model(rendered).spec["volumes"] if each["name"] == "models"]
        name: str = found["metadata"]["name"]
        assert mounted["persistentVolumeClaim"]["claimName"] == name
        return name

    assert claim(change) != claim({}) == claim({"size": "2Ti"})


def test_a_checkpoint_of_the_hub_is_downloaded_for_llama_cpp() -> None:
    containers = before_serving(case("sidecar"), "qwen")
    assert list(containers) == ["download", "repository"]
    command = containers["download"]["command"]
    assert {"--runtime=llama_cpp", "--checkpoint=Qwen/Qwen2.5-0.5B-Instruct@main"} <= set(command)
    assert "--adapter=my-org/polite=/source/polite" in command
    assert "nvidia.com/gpu" not in str(containers)


def test_the_test_pod_has_limits_that_a_quota_may_require() -> None:
    [pod] = [pod for pod in pods(render()) if pod.owner.startswith("Pod/")]
    assert set(pod.main["resources"]["limits"]) == {"cpu", "memory"}
    [changed] = [pod for pod in pods(render({"tests": {"resources": {"limits": {"cpu": "1"}}}})) if "Pod/" in pod.owner]
    assert changed.main["resources"]["limits"]["cpu"] == "1"


def test_the_frontend_runs_in_the_pod_of_its_model() -> None:
    rendered = render(with_demo(aliases=["d"]) | {"frontend": {"sidecar": True, "auth": {"existingSecret": "keys"}}})
    assert [each["metadata"]["name"] for each in rendered.of_kind("Deployment")] == ["demo-demo"]
    pod = pod_of_model(rendered, "demo")
    triton, frontend = pod.spec["containers"]
    assert triton["name"] == "triton"
    assert {"--triton=demo,d=127.0.0.1:8001", "--key-file=/etc/conch/keys/keys.json"} <= set(frontend["args"])
    assert {"keys", "home", "tmp"} <= {volume["name"] for volume in pod.spec["volumes"]}
    for name in ("demo-frontend", "demo-frontend-operations"):
        assert rendered.one("Service", name)["spec"]["selector"].items() <= pod.labels.items()
    policy = rendered.one("NetworkPolicy", "demo-frontend")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod.labels.items()


def test_in_a_group_the_frontend_runs_with_the_leader() -> None:
    rendered = render(values_of("nodes") | {"frontend": {"sidecar": True}})
    containers = {
        pod.owner.rpartition("/")[2]: [each["name"] for each in pod.spec["containers"]] for pod in pods(rendered)
    }
    assert containers["leader"] == ["triton", "frontend"]
    assert containers["worker"] == ["ranks"]
    selector = rendered.one("Service", "demo-frontend")["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_a_pod_ends_when_both_its_frontend_and_its_engine_have_drained() -> None:
    drain = {"preStopSeconds": 100, "maxStreamSeconds": 1000}
    rendered = render({"frontend": {"sidecar": True, "drain": drain}})
    assert pod_of_model(rendered, "demo").spec["terminationGracePeriodSeconds"] == 1115


def test_with_tls_the_sidecar_checks_the_certificate_for_the_name_of_the_service() -> None:
    rendered = render({"frontend": {"sidecar": True}, "tritonTls": {"existingSecret": "triton"}})
    frontend = pod_of_model(rendered, "demo").spec["containers"][1]
    assert "--triton-tls-name=demo-demo-pods.serving.svc" in frontend["args"]


def test_a_pool_has_the_pods_with_the_frontend_and_the_route_leads_to_it() -> None:
    rendered = case("sidecar")
    [pool], [route] = rendered.of_kind("InferencePool"), rendered.of_kind("HTTPRoute")
    service = rendered.one("Service", pool["metadata"]["name"])
    assert pool["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    metrics, api = route["spec"]["rules"]
    assert "backendRefs" not in metrics and metrics["matches"][0]["path"]["value"] == "/metrics"
    assert "--picker-metrics" in pod_of_model(rendered, "qwen").spec["containers"][1]["args"]
    [backend] = api["backendRefs"]
    assert backend == {
        "group": "inference.networking.k8s.io",
        "kind": "InferencePool",
        "name": pool["metadata"]["name"],
    }
