"""The 45 points of the chart's checklist: each has a test that is named by its number, here or in the other files."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helm.cases import CASES, with_gpu_model
from tests.helm.chart import pods, render

NUM_POINTS = 45

# What only a real cluster can show. The tests of these numbers assert what the rendered objects decide, and what Helm
# does with them at a double of an API server.
NEEDS_A_CLUSTER = {
    31: "a server's own dry run of Pod Security `restricted`",
    36: "a scheduler that places a new pod beside the old one",
    42: "controllers and garbage collection, between install and uninstall",
    43: "two of three pods with eight GPUs are bound to two nodes",
}


def test_every_point_has_a_test() -> None:
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for name in re.findall(r"^def test_((?:\d\d_)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found |= {int(number) for number in name.strip("_").split("_")}
    assert found == set(range(1, NUM_POINTS + 1))
    assert NEEDS_A_CLUSTER.keys() <= found


def test_42_nothing_but_the_cache_outlives_a_release() -> None:
    for values in CASES.values():
        for each in render(values).objects:
            annotations = each["metadata"].get("annotations", {})
            keeps = annotations.get("helm.sh/resource-policy") == "keep"
            assert keeps is (each["kind"] == "PersistentVolumeClaim")
            # A hook's objects are not the release's: they stay where they are not deleted.
            if "helm.sh/hook" in annotations:
                assert each["kind"] == "Pod"
                assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]


def test_43_a_pod_asks_for_all_gpus_of_a_node_so_that_two_do_not_share_one() -> None:
    model = with_gpu_model(parallelism={"tensor": 8}, gpus={"perNode": 8, "profile": "h100"}, replicas=3)
    rendered = render(model)
    [pod] = [pod for pod in pods(rendered) if pod.owner == "Deployment/demo-llama"]
    assert rendered.one("Deployment", "demo-llama")["spec"]["replicas"] == 3
    for container in pod.containers:
        for kind in ("requests", "limits"):
            assert container["resources"][kind]["nvidia.com/gpu"] == "8"
