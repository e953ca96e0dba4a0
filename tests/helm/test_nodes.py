"""Models over several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.cases import CASES, SHAPES, case, values_of
from tests.helm.chart import Rendered, pods, render


def group(rendered: Rendered) -> dict[str, Any]:
    [found] = rendered.of_kind("LeaderWorkerSet")
    return found


def with_layout(tensor: int, pipeline: int, per_node: int) -> Rendered:
    values = values_of("nodes")
    values["models"][0] |= {
        "parallelism": {"tensor": tensor, "pipeline": pipeline},
        "gpus": {"perNode": per_node, "profile": "h100"},
    }
    return render(values)


def test_405b_is_a_group_of_two_nodes_with_16_gpus() -> None:
    spec = group(case("nodes"))["spec"]["leaderWorkerTemplate"]
    assert spec["size"] == 2
    for role in ("leaderTemplate", "workerTemplate"):
        [container] = spec[role]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8"}
    [frontend] = case("nodes").of_kind("Deployment")
    assert frontend["metadata"]["name"] == "demo-frontend"


@pytest.mark.parametrize("layout", [(8, 1, 8), (2, 2, 4), (1, 1, 1)])
def test_a_model_that_fits_a_node_is_a_deployment(layout: tuple[int, int, int]) -> None:
    rendered = with_layout(*layout)
    assert rendered.of_kind("LeaderWorkerSet") == []
    assert rendered.one("Deployment", "demo-llama-405b")


@pytest.mark.parametrize(("layout", "num_nodes"), [((8, 3, 8), 3), ((4, 2, 4), 2), ((8, 8, 8), 8), ((2, 8, 8), 2)])
def test_the_size_and_the_ranks_follow_from_the_layout(layout: tuple[int, int, int], num_nodes: int) -> None:
    template = group(with_layout(*layout))["spec"]["leaderWorkerTemplate"]
    assert template["size"] == num_nodes
    for role in ("leaderTemplate", "workerTemplate"):
        environment = {each["name"]: each.get("value") for each in template[role]["spec"]["containers"][0]["env"]}
        assert int(environment["CONCH_NUM_RANKS"]) == layout[0] * layout[1]
        assert int(environment["CONCH_RANKS_PER_NODE"]) * num_nodes == layout[0] * layout[1]


@pytest.mark.parametrize("name", SHAPES)
def test_services_of_other_models_lead_to_all_pods(name: str) -> None:
    rendered = render(CASES[name])
    for service in rendered.of_kind("Service"):
        model = service["spec"]["selector"].get("conch/model")
        is_group = any(
            each["metadata"]["labels"].get("conch/model") == model for each in rendered.of_kind("LeaderWorkerSet")
        )
        assert ("leaderworkerset.sigs.k8s.io/worker-index" in service["spec"]["selector"]) is (
            model is not None and is_group
        )


@pytest.mark.parametrize(
    ("strategy", "defaults", "expected"),
    [
        ({}, {}, (0, 1)),
        ({"maxSurge": 1}, {}, (1, 0)),
        ({}, {"maxSurge": 1, "maxUnavailable": 0}, (0, 1)),
        ({}, {"maxSurge": 2}, (2, 0)),
        ({"maxUnavailable": 1}, {}, (1, 1)),
    ],
)
def test_a_group_is_replaced_in_place_unless_values_ask_for_a_second_one(
    strategy: dict[str, int], defaults: dict[str, int], expected: tuple[int, int]
) -> None:
    """With a surge, controllers of LeaderWorkerSet before 0.9.0 never replaced the pods of the only group."""
    values = values_of("nodes") | {"modelDefaults": {"strategy": defaults}}
    values["models"][0] |= {"strategy": strategy} if strategy else {}
    rendered = render(values)
    found = group(rendered)["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert (found["maxSurge"], found["maxUnavailable"]) == expected
    assert ("LeaderWorkerSet 0.9.0 or later" in rendered.notes) is (expected[0] > 0)


def test_losing_a_pod_recreates_its_group() -> None:
    assert group(case("nodes"))["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_leader_and_workers_run_the_start_script_with_the_key_and_the_checkpoint() -> None:
    leader, worker = (pod for pod in pods(case("nodes")) if pod.owner.startswith("LeaderWorkerSet/"))
    assert leader.main["command"][:6] == [
        *("/bin/bash", "/etc/conch/scripts/start-ranks.sh"),
        *("python3", "-m", "frontend", "triton"),
    ]
    assert worker.main["command"] == ["/bin/bash", "/etc/conch/scripts/start-ranks.sh"]
    for pod in (leader, worker):
        mounts = {mount["mountPath"] for mount in pod.main["volumeMounts"]}
        assert {"/etc/conch/ssh", "/etc/conch/scripts", "/models", "/dev/shm"} <= mounts
        environment = {each["name"]: each.get("value") for each in pod.main["env"]}
        assert environment["NCCL_IB_HCA"] == "mlx5"
    assert "initContainers" not in worker.spec
    assert worker.main["livenessProbe"]["tcpSocket"] == {"port": "ssh"}


def test_a_leader_may_wait_for_its_workers_before_it_loads() -> None:
    values = values_of("nodes") | {"modelDefaults": {"loadTimeoutSeconds": 100}}
    values["multinode"]["startTimeoutSeconds"] = 500
    leader = group(render(values))["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]
    assert leader["startupProbe"]["periodSeconds"] * leader["startupProbe"]["failureThreshold"] >= 600
