"""Names, selectors, replicas, roll-outs and budgets."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.helm.cases import CASES, SHAPES, case, values_of, with_demo, with_gpu_model
from tests.helm.chart import CHART, PodTemplate, Rendered, pods, render
from tests.helm.validation import KUBERNETES_VERSIONS, errors

MARGIN_S = 5  # of a pod that ends, beyond its pause and its streams


def selectors(rendered: Rendered) -> dict[tuple[str, str], Any]:
    """Return what selects pods, of every object that does."""
    found = {}
    for each in rendered.objects:
        spec = each.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if selector is not None:
            found[each["kind"], each["metadata"]["name"]] = selector.get("matchLabels", selector)
    return found


def pod_of(rendered: Rendered, owner: str) -> PodTemplate:
    """Return the pod that an object of this kind and name makes."""
    [found] = [pod for pod in pods(rendered) if pod.owner == owner]
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_two_releases_in_one_namespace_share_no_object_and_select_no_pod_of_the_other(name: str) -> None:
    one, two = render(CASES[name], release="one"), render(CASES[name], release="two")
    shared = {*one.names()} & {*two.names()}
    assert shared <= {("ConfigMap", "beside")}  # an object of the user's own
    assert len({*one.names()}) == len(one.names())
    for pod in pods(two):
        assert not [name for name, selector in selectors(one).items() if selector.items() <= pod.labels.items()]


def test_selectors_are_the_same_after_an_upgrade_of_version_and_values() -> None:
    changed = {
        "images": {"tritonCpu": {"tag": "9.9.9"}, "frontend": {"tag": "9.9.9"}},
        "commonLabels": {"new": "label"},
        "frontend": {"replicas": 4, "podLabels": {"x": "y"}},
        **with_demo(podLabels={"x": "y"}, shmSize="1Gi", aliases=["new"], serving={"maxSequences": 3}),
    }
    before, after = selectors(render()), selectors(render(changed, is_upgrade=True))
    assert before.items() <= after.items()
    for selector in after.values():
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(selector)


@pytest.mark.parametrize("name", SHAPES)
def test_every_selector_selects_a_pod_of_the_release(name: str) -> None:
    rendered = render(CASES[name])
    by_controller = {"leaderworkerset.sigs.k8s.io/worker-index"}
    labels = [pod.labels for pod in pods(rendered)]
    for owner, selector in selectors(rendered).items():
        if owner[0] != "ServiceMonitor":  # it selects Services
            own = {key: value for key, value in selector.items() if key not in by_controller}
            assert any(own.items() <= each.items() for each in labels), owner


@pytest.mark.parametrize("name", SHAPES)
def test_no_image_is_named_latest_or_nothing(name: str) -> None:
    images = [container["image"] for pod in pods(render(CASES[name])) for container in pod.containers]
    assert images
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+$|@sha256:[0-9a-f]{64}$", image), image


def test_a_registry_and_a_digest_are_part_of_the_image() -> None:
    assert pod_of(case("cpu"), "Deployment/demo-llama").main["image"] == (
        "registry.example.com/llm/conch-triton-cpu:0.1.0"
    )
    assert pod_of(case("plain"), "Deployment/demo-frontend").main["image"].startswith("conch-frontend@sha256:")


def test_replicas_are_absent_where_an_autoscaler_sets_them() -> None:
    rendered = case("scaled")
    for name in ("demo-frontend", "demo-demo", "demo-other"):
        assert "replicas" not in rendered.one("Deployment", name)["spec"]
    assert render().one("Deployment", "demo-demo")["spec"]["replicas"] == 1
    values = values_of("nodes")
    del values["models"][0]["replicas"]
    values["models"][0]["autoscaling"] = {"enabled": True}
    group = render(values)
    assert "replicas" not in group.of_kind("LeaderWorkerSet")[0]["spec"]
    assert group.of_kind("ScaledObject")[0]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"


def test_an_autoscaler_targets_an_existing_object() -> None:
    rendered = case("scaled")
    for each in (*rendered.of_kind("ScaledObject"), *rendered.of_kind("HorizontalPodAutoscaler")):
        target = each["spec"]["scaleTargetRef"]
        assert rendered.one(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]


def test_another_script_rolls_the_pods_that_use_it_and_no_others() -> None:
    assert {pod.owner for pod in pods(case("nodes")) if "conch/scripts" in pod.annotations} == {
        pod.owner for pod in pods(case("nodes")) if pod.owner.startswith("LeaderWorkerSet/")
    }
    assert not [pod for pod in pods(case("gpu")) if "conch/scripts" in pod.annotations]


def test_the_mounted_scripts_are_those_of_the_chart() -> None:
    scripts = case("nodes").one("ConfigMap", "demo-scripts")["data"]
    assert list(scripts) == ["start-ranks.sh"]
    for name, text in scripts.items():
        assert text.strip() == (CHART / "files" / name).read_text(encoding="utf-8").strip()


def test_a_change_of_one_model_rolls_no_pod_of_another() -> None:
    values = values_of("gpu")
    before = {pod.owner: pod for pod in pods(render(values))}
    values["models"][0]["shmSize"] = "1Gi"
    values["models"][0]["serving"] = {"maxSequences": 8}
    after = {pod.owner: pod for pod in pods(render(values))}
    assert after["Deployment/demo-llama-70b"] != before["Deployment/demo-llama-70b"]
    for owner in ("Deployment/demo-qwen-7b", "Deployment/demo-qwen-32b"):
        assert after[owner] == before[owner]


@pytest.mark.parametrize("name", ["nodes", "gpu", "default"])
def test_labels_for_people_and_aliases_roll_no_model(name: str) -> None:
    """Each of them replaced every engine, which may load for an hour."""
    values = values_of(name)
    values["models"] = values.get("models", [{"name": "demo"}])
    before = {pod.owner: pod for pod in pods(render(values))}
    values["models"][0]["aliases"] = ["another"]
    after = render(values | {"commonLabels": {"team": "a"}, "commonAnnotations": {"note": "b"}})
    rolled = {pod.owner for pod in pods(after) if before[pod.owner] != pod}
    assert rolled == {"Deployment/demo-frontend", "Pod/demo-test-api"}, "the name, and the Pod itself"
    for each in after.objects:
        assert (each["metadata"]["labels"]["team"], each["metadata"]["annotations"]["note"]) == ("a", "b")


def test_the_frontend_rolls_for_the_names_of_models_and_for_nothing_else_of_them() -> None:
    values = values_of("gpu")
    frontend = next(pod for pod in pods(render(values)) if pod.owner == "Deployment/demo-frontend")
    values["models"][0]["shmSize"] = "1Gi"
    assert frontend in pods(render(values))
    values["models"][0]["aliases"] = ["another"]
    assert frontend not in pods(render(values))


def longest_end_s(pod: PodTemplate) -> int:
    """Return how long a pod may take from the decision to end it until it does so by itself."""
    words = [*pod.main["lifecycle"]["preStop"]["exec"]["command"], *pod.main["args"]]
    if words[0] == "sleep":
        return int(words[1]) + sum(int(word.partition("=")[2]) for word in words if "drain-timeout-s" in word)
    limits = ("--timeout-s=", "--exit-timeout-s=")
    return sum(int(word.partition("=")[2]) for word in words if word.startswith(limits))


@pytest.mark.parametrize("name", SHAPES)
def test_a_pod_is_not_killed_before_it_has_ended_by_itself(name: str) -> None:
    serving = [pod for pod in pods(render(CASES[name])) if "startupProbe" in pod.main]
    assert serving
    for pod in serving:
        assert pod.spec["terminationGracePeriodSeconds"] >= longest_end_s(pod) + MARGIN_S


def test_a_model_is_given_its_time_for_loading() -> None:
    for seconds in (10, 299, 1800):
        probe = pod_of(render(with_demo(loadTimeoutSeconds=seconds)), "Deployment/demo-demo").main["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= seconds


def test_the_time_for_streams_reaches_both_tiers() -> None:
    drain = {"preStopSeconds": 7, "maxStreamSeconds": 100}
    rendered = render({"frontend": {"drain": drain}, **with_demo(drain=drain)})
    frontend, model = pod_of(rendered, "Deployment/demo-frontend"), pod_of(rendered, "Deployment/demo-demo")
    assert "--drain-timeout-s=100" in frontend.main["args"]
    assert frontend.main["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert {"drain", "--notice-s=7", "--timeout-s=107", "--hand-over"} <= set(
        model.main["lifecycle"]["preStop"]["exec"]["command"]
    )
    assert [pod.spec["terminationGracePeriodSeconds"] for pod in (frontend, model)] == [122, 147]


@pytest.mark.parametrize("name", SHAPES)
def test_readiness_and_liveness_ask_for_different_things(name: str) -> None:
    for pod in pods(render(CASES[name])):
        if "startupProbe" in pod.main:
            checks = [
                {key: pod.main[probe].get(key) for key in ("exec", "httpGet")}
                for probe in ("readinessProbe", "livenessProbe")
            ]
            assert checks[0] != checks[1], pod.owner


def test_how_a_version_takes_over_comes_from_the_values() -> None:
    strategy = {"maxSurge": "25%", "maxUnavailable": 2}
    rendered = render({"frontend": {"strategy": strategy}, **with_demo(strategy=strategy)})
    for each in rendered.of_kind("Deployment"):
        assert each["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": strategy}
    values = values_of("nodes")
    values["models"][0]["strategy"] = strategy
    [group] = render(values).of_kind("LeaderWorkerSet")
    assert group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] == strategy


def test_there_is_a_disruption_budget_only_for_more_than_one_pod() -> None:
    assert render().of_kind("PodDisruptionBudget") == []
    names = {each["metadata"]["name"] for each in case("cpu").of_kind("PodDisruptionBudget")}
    assert names == {"demo-frontend", "demo-qwen-gguf"}
    names = {each["metadata"]["name"] for each in case("scaled").of_kind("PodDisruptionBudget")}
    assert names == {"demo-frontend", "demo-demo"}  # the other one has one replica at least
    for each in case("scaled").of_kind("PodDisruptionBudget"):
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "a pod that never gets ready can be moved"


def test_the_budget_of_a_group_covers_its_workers() -> None:
    rendered = case("nodes")
    [budget] = rendered.of_kind("PodDisruptionBudget")
    for role in ("leader", "worker"):
        pod = pod_of(rendered, f"LeaderWorkerSet/demo-llama-405b-group/{role}")
        assert budget["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()


@pytest.mark.parametrize("name", SHAPES)
def test_every_triton_has_shared_memory_of_a_set_size(name: str) -> None:
    found = [pod for pod in pods(render(CASES[name])) if pod.labels["app.kubernetes.io/component"] == "model"]
    assert found
    for pod in found:
        [mount] = [mount for mount in pod.main["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
        [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == mount["name"]]
        assert volume["emptyDir"]["medium"] == "Memory"
        assert re.fullmatch(r"\d+[MG]i", volume["emptyDir"]["sizeLimit"])


@pytest.mark.parametrize(("per_node", "replicas"), [(1, 0), (4, 1), (8, 0), (2, 4)])
def test_a_pod_is_limited_to_its_gpus_and_requests_the_profiles_share_for_each(per_node: int, replicas: int) -> None:
    model = with_gpu_model(
        parallelism={"tensor": per_node},
        gpus={"perNode": per_node, "profile": "h100"},
        serving={"replicasPerPod": replicas},
    )
    resources = pod_of(render(model), "Deployment/demo-llama").main["resources"]
    num_gpus = per_node * max(1, replicas)
    assert resources["limits"] == {"nvidia.com/gpu": str(num_gpus)}
    assert resources["requests"] == {
        "cpu": str(8 * num_gpus),
        "memory": f"{100 * num_gpus}Gi",
        "nvidia.com/gpu": str(num_gpus),
    }


def test_a_models_own_resources_count_beside_its_gpus() -> None:
    resources = pod_of(case("gpu"), "Deployment/demo-qwen-7b").main["resources"]
    assert resources["limits"] == {"memory": "200Gi", "nvidia.com/gpu": "1"}


def test_a_model_is_placed_by_its_profile_and_its_own_values() -> None:
    values = values_of("gpu")
    for model in values["models"]:
        model |= {"nodeSelector": {"pool": "a"}, "tolerations": [{"key": "x"}], "runtimeClassName": "nvidia"}
    for model in ("llama-70b", "qwen-7b"):
        serving = pod_of(render(values), f"Deployment/demo-{model}")
        assert serving.spec["runtimeClassName"] == "nvidia"
        assert serving.spec["nodeSelector"]["pool"] == "a"
        assert serving.spec["nodeSelector"]["nvidia.com/gpu.product"].startswith("NVIDIA-H")
        assert {"key": "x"} in serving.spec["tolerations"]


def test_the_test_is_placed_like_the_frontend() -> None:
    rendered = render({"frontend": {"nodeSelector": {"pool": "b"}, "tolerations": [{"key": "x"}]}})
    for owner in ("Deployment/demo-frontend", "Pod/demo-test-api"):
        pod = pod_of(rendered, owner)
        assert pod.spec["nodeSelector"] == {"pool": "b"}
        assert pod.spec["tolerations"][0] == {"key": "x"}


@pytest.mark.parametrize(
    "given",
    [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_pods_of_a_lost_node_are_replaced_within_a_minute_unless_a_toleration_says_otherwise(
    given: dict[str, Any],
) -> None:
    """Kubernetes' default is five minutes."""
    frontend = {"tolerations": [given], "lostNodeSeconds": 20}
    for pod in pods(render({"frontend": frontend, **values_of("nodes")})):
        of_frontend = "LeaderWorkerSet" not in pod.owner
        seconds = {
            each["key"]: each["tolerationSeconds"] for each in pod.spec["tolerations"] if "tolerationSeconds" in each
        }
        expected = {f"node.kubernetes.io/{name}": 20 if of_frontend else 60 for name in ("not-ready", "unreachable")}
        if of_frontend and given.get("effect") != "NoSchedule":
            for key in [given["key"]] if "key" in given else [*expected]:
                del expected[key]
        assert seconds == expected, pod.owner


def test_the_frontends_pods_are_spread() -> None:
    rendered = render()
    pod = pod_of(rendered, "Deployment/demo-frontend")
    for constraint in pod.spec["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"].items() <= pod.labels.items()
        assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert len(pod.spec["topologySpreadConstraints"]) == 2
    quiet = pod_of(render({"frontend": {"topologySpread": False}}), "Deployment/demo-frontend")
    assert "topologySpreadConstraints" not in quiet.spec


def test_priority_classes_are_passed_on() -> None:
    rendered = case("cpu")
    assert pod_of(rendered, "Deployment/demo-frontend").spec["priorityClassName"] == "interactive"
    assert pod_of(rendered, "Deployment/demo-qwen-gguf").spec["priorityClassName"] == "batch"
    assert "priorityClassName" not in pod_of(rendered, "Deployment/demo-demo").spec


def test_the_service_of_the_api_takes_the_fields_of_its_type() -> None:
    fields = {
        "type": "LoadBalancer",
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv6", "IPv4"],
        "externalTrafficPolicy": "Local",
        "loadBalancerClass": "example.com/internal",
        "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"],
    }
    rendered = render({"frontend": {"service": {**fields, "nodePort": 30080}}})
    assert errors(rendered, KUBERNETES_VERSIONS[-1]) == []
    spec = rendered.one("Service", "demo-frontend")["spec"]
    assert fields.items() <= spec.items()
    assert spec["ports"][0]["nodePort"] == 30080
    default = render().one("Service", "demo-frontend")["spec"]
    assert not {*fields} & {*default} - {"type"}
    assert "nodePort" not in default["ports"][0]


def test_secrets_for_images_may_have_the_form_of_kubernetes() -> None:
    """A parent chart shares its global values with other charts, which may need this form."""
    rendered = render({"global": {"imagePullSecrets": ["a", {"name": "b"}]}})
    assert {json.dumps(pod.spec["imagePullSecrets"]) for pod in pods(rendered)} == {'[{"name": "a"}, {"name": "b"}]'}


def test_a_proxy_before_the_frontend_learns_whether_it_has_tls() -> None:
    nginx = "nginx.ingress.kubernetes.io/backend-protocol"
    for tls, protocol in (({}, "http"), ({"existingSecret": "api-tls"}, "https")):
        rendered = render({"frontend": {"tls": tls, "ingress": {"enabled": True}}})
        [port] = rendered.one("Service", "demo-frontend")["spec"]["ports"]
        assert port["appProtocol"] == protocol
        assert (nginx in rendered.of_kind("Ingress")[0]["metadata"]["annotations"]) is bool(tls)
    own = render({"frontend": {"tls": tls, "ingress": {"enabled": True, "annotations": {nginx: "GRPCS"}}}})
    assert own.of_kind("Ingress")[0]["metadata"]["annotations"][nginx] == "GRPCS"
