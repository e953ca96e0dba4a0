"""Values that are refused, with a message that says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.contract.tensors import model_id_to_ensemble
from tests.helm.cases import CASES, SHAPES, values_of, with_demo, with_gpu_model
from tests.helm.chart import Values, pods, refusal, render

CHECKPOINT = {"existingClaim": "checkpoints", "path": "llama"}


@pytest.mark.parametrize(
    ("parallelism", "per_node"), [({"tensor": 3}, 2), ({"tensor": 2, "pipeline": 3}, 4), ({"tensor": 1}, 2)]
)
def test_gpus_that_do_not_fill_nodes_are_refused(parallelism: dict[str, int], per_node: int) -> None:
    said = refusal(with_gpu_model(parallelism=parallelism, gpus={"perNode": per_node, "profile": "h100"}))
    assert f"do not fill nodes of gpus.perNode {per_node}: write a number that divides" in said


@pytest.mark.parametrize(("tensor", "pipeline"), [(16, 1), (3, 8)])
def test_layers_shared_across_nodes_are_refused(tensor: int, pipeline: int) -> None:
    values = values_of("nodes")
    values["models"][0]["parallelism"] = {"tensor": tensor, "pipeline": pipeline}
    said = refusal(values)
    assert (
        f"parallelism.tensor {tensor}: GPUs that share layers must be in one node: write a number that divides" in said
    )
    assert f"gpus.perNode 8, such as 8, and parallelism.pipeline {tensor * pipeline // 8}" in said


def test_a_number_of_layers_is_refused_where_llama_cpp_computes_on_cores_or_tensorrt_llm_computes_all() -> None:
    values = values_of("cuda")
    values["models"][0]["gpus"] = {"layers": 20}
    for each in (values, with_gpu_model(gpus={"perNode": 1, "profile": "h100", "layers": 20})):
        assert "gpus.layers 20: for llama_cpp with gpus.perNode: write auto" in refusal(each)


def test_replicas_of_a_pod_are_refused_for_a_model_of_several_nodes() -> None:
    values = values_of("nodes")
    values["models"][0]["serving"] = {"replicasPerPod": 2}
    said = refusal(values)
    assert (
        "serving.replicasPerPod 2: the model spans 2 nodes, and the replicas of a pod share one: write 0, and" in said
    )


@pytest.mark.parametrize("version", ["1.3.0", "2.0.0"])
def test_an_image_without_engines_is_refused_for_the_engine_backend(version: str) -> None:
    images = {"images": {"tritonGpu": {"tensorrtLlmVersion": version}}}
    said = refusal(with_gpu_model() | images)
    assert f"tensorrtLlmVersion {version} cannot run engines" in said
    assert "write engine.backend: pytorch, or an image from 26.04 to 26.07" in said
    pytorch = with_gpu_model(engine={"runtime": "tensorrt_llm", "backend": "pytorch"}, build={})
    assert render(pytorch | images).of_kind("Deployment")


def test_the_image_of_a_newer_release_is_chosen_by_one_value_and_refused_for_engines() -> None:
    said = refusal(with_gpu_model(image="tensorrtLlm"))
    assert "images.tensorrtLlm.tensorrtLlmVersion 1.3.0rc29 cannot run engines" in said
    values = with_gpu_model(engine={"runtime": "tensorrt_llm", "backend": "pytorch"}, build={}, image="tensorrtLlm")
    [pod] = [pod for pod in pods(render(values)) if pod.owner.endswith("-llama")]
    assert {container["image"].partition(":")[0] for container in pod.containers} == {"conch-tensorrt-llm"}
    assert "image: tritonGpu is for engine.runtime tensorrt_llm" in refusal(with_demo(image="tritonGpu"))


@pytest.mark.parametrize("name", SHAPES)
def test_names_stay_within_their_limits_in_a_release_with_a_long_name(name: str) -> None:
    release = "r" * 53
    for kind, found in render(CASES[name], release=release).names():
        if found != "beside":  # an object of the user's own
            # A pod of a group has the label controller-revision-hash: NAME-GROUP-DIGEST.
            label = found + "-999-4294967295" if kind == "LeaderWorkerSet" else found
            assert len(label) <= 63, (kind, found)


def test_long_names_that_are_cut_stay_different() -> None:
    models = [{"name": f"{'m' * 29}{n}", "servedName": str(n), "source": CHECKPOINT} for n in range(3)]
    names = render({"models": models}, release="r" * 53).names()
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("release", ["123", "1a", "0x10", "2024-01-01"])
def test_a_release_after_which_no_service_can_be_named_is_refused(release: str) -> None:
    assert f"install it as llm-{release}" in refusal({}, release=release)


@pytest.mark.parametrize("name", ["Upper", "9lives", "a_b", "-a", "a-", "m" * 31, ""])
def test_a_model_whose_name_no_object_can_have_is_refused(name: str) -> None:
    assert "/models/0/name" in refusal({"models": [{"name": name, "servedName": "demo"}]})


@pytest.mark.parametrize("name", ["frontend", "frontend-operations", "cache", "demo-pods", "demo-group", "test-api"])
def test_a_model_that_is_named_like_another_object_is_refused(name: str) -> None:
    assert "another object of the chart has this name" in refusal({"models": [{"name": name, "servedName": "demo"}]})


@pytest.mark.parametrize("model_id", ["org/a--b", "a__b", "a b", "a=b", "a,b", "/a", "a/", "-a", "a//b", "é"])
def test_an_id_that_no_model_can_have_is_refused(model_id: str) -> None:
    with pytest.raises(ValueError, match="model id"):
        model_id_to_ensemble(model_id)
    said = refusal(with_demo(servedName=model_id, source=CHECKPOINT))
    assert "is not a valid model id: write a `servedName` of letters, digits" in said


@pytest.mark.parametrize("model_id", ["a", "org/a.b:c_d-1", "A/b/C9"])
def test_every_id_that_a_model_can_have_is_taken(model_id: str) -> None:
    assert model_id_to_ensemble(model_id)
    assert render(with_demo(servedName=model_id, source=CHECKPOINT)).of_kind("Deployment")


def test_a_share_of_groups_that_the_controller_takes_for_none_is_refused() -> None:
    values = values_of("nodes")
    values["models"][0]["strategy"] = {"maxSurge": 0, "maxUnavailable": "25%"}
    assert "strategy.maxUnavailable 25% of few groups of nodes is rounded down to 0" in refusal(values)
    assert render(with_demo(strategy={"maxSurge": 0, "maxUnavailable": "25%"}))  # a Deployment takes one pod at least


CLAIM = {"existingClaim": "c"}
SYNTHETIC, PYTORCH = {"runtime": "synthetic"}, {"runtime": "tensorrt_llm", "backend": "pytorch"}
BUILD = {"enabled": True}
SCALED = {"autoscaling": {"enabled": True}}
STUCK = {"maxSurge": "0%", "maxUnavailable": 0}


def with_two_models(**second: Any) -> Values:
    return {"models": [{"name": "demo"}, {"name": "b", "source": CHECKPOINT} | second]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (with_two_models(name="demo", servedName="b"), "models[1] (demo): another model has this name: write another"),
        (with_two_models(servedName="demo"), 'models[1] (b): demo has the id "demo" already'),
        (with_two_models(aliases=["demo"]), 'models[1] (b): demo has the id "demo" already'),
        (with_demo(aliases=[""]), 'models[0] (demo): aliases: "" is not a valid alias: write one that is not empty'),
        (with_demo(aliases=["a,b"]), 'models[0] (demo): aliases: "a,b" is not a valid alias: write one that is not'),
        (with_demo(build=BUILD), "has no engines to build: write build.enabled: false"),
        (with_demo(build=BUILD, engine=SYNTHETIC), "has no engines to build: write build.enabled: false"),
        (with_gpu_model(engine=PYTORCH), "build.enabled: backend pytorch has no engines to build"),
        ({"frontend": {"replicas": 2} | SCALED}, "replicas 2 and autoscaling.enabled contradict each other"),
        (with_demo(replicas=3, **SCALED), "models[0] (demo): replicas 3 and autoscaling.enabled contradict each other"),
        (with_demo(autoscaling={"enabled": True, "minReplicas": 5}), "minReplicas 5 is more than maxReplicas 4"),
        (with_demo(autoscaling={"scaleToZero": True}), "scaleToZero: autoscaling is off: write autoscaling.enabled"),
        ({"frontend": {"strategy": STUCK}}, "frontend: strategy.maxSurge and strategy.maxUnavailable are both 0"),
        (with_demo(strategy=STUCK | {"maxSurge": 0}), "strategy.maxSurge and strategy.maxUnavailable are both 0"),
        (with_demo(servedName="other"), "source: only the demo model needs no source: write source.huggingface.repo"),
        (with_demo(source={"path": "x"}), "source.existingClaim: write the name of the claim with x"),
        (with_demo(source=CLAIM), "write the path, gguf, artifact or adapters inside source.existingClaim c"),
        (with_demo(source={**CLAIM, "path": "x", "tokenizer": "y"}), "source.tokenizer goes with source.gguf"),
        (with_demo(source={"huggingface": {"gguf": "Q8_0"}}), "source.huggingface.gguf: write the repository"),
        (
            with_demo(source={**CLAIM, "path": "x", "artifact": "y"}),
            "source.path and source.artifact: write only one",
        ),
        (
            with_demo(source={"huggingface": {"repo": "a/b"}}),
            "cache.type: the models demo need a volume for",
        ),
        (
            with_demo(engine={"maxBatchSize": 4}),
            "engine.maxBatchSize is for tensorrt_llm: write serving.maxSequences",
        ),
        (
            with_demo(engine={"llmOptions": {"dtype": "float16"}}),
            "models[0] (demo): engine.llmOptions is for tensorrt_llm",
        ),
        (with_demo(engine={"runtime": "synthetic"}, gpus={"perNode": 1}), "gpus.perNode 1: synthetic runs on CPUs"),
        (with_demo(parallelism={"tensor": 2}), "for tensorrt_llm: write 1 and 1, and gpus.perNode for llama_cpp"),
        (
            with_demo(gpus={"perNode": 1}, serving={"replicasPerPod": 2}),
            "takes all GPUs of its pod: write 0, and replicas: 2",
        ),
        (with_demo(gpus={"perNode": 1}), "the demo model has adapters, and llama_cpp takes none on GPUs: write 0"),
        (with_demo(gpus={"profile": "tpu"}), 'gpus.profile "tpu": write one of b200, cpu-small, cuda, h100, h200'),
        (with_gpu_model(gpus={"profile": "h100"}), "tensorrt_llm needs GPUs: write the number on each node, 1"),
        (with_demo(source={**CLAIM, "path": "x", "mmproj": "y"}), "source.mmproj goes with source.gguf"),
        (with_gpu_model(source={**CLAIM, "gguf": "x", "tokenizer": "y"}), "source.gguf is for llama_cpp"),
        (
            with_gpu_model(source={"huggingface": {"repo": "a/b", "gguf": "x"}}),
            "source.huggingface.gguf is for llama_cpp",
        ),
        (with_gpu_model(source={}), "write source.huggingface.repo, source.path or source.artifact"),
        (with_gpu_model(build={}), "the source of the engine is missing: write build.enabled: true, or"),
        (with_gpu_model() | {"cache": {"type": "none"}}, "cache.type: the models llama need a volume"),
        (with_gpu_model() | {"cache": {"type": "existingClaim"}}, "cache.existingClaim: write the name of the claim"),
        (with_gpu_model() | {"cache": {"type": "hostPath"}}, "cache.hostPath: write the path of the folder"),
        (values_of("nodes") | {"multinode": {}}, "the model spans 2 nodes: write multinode.sshKeySecret"),
        (
            {"tritonTls": {"clientSecret": "x"}},
            "tritonTls.clientSecret: TLS is off: write tritonTls.existingSecret",
        ),
        (
            {"frontend": {"tls": {"clientCa": True}}},
            "frontend.tls.clientCa: TLS is off: write frontend.tls.existingSecret",
        ),
        (
            {"frontend": {"auth": {"allowAnonymous": True, "existingSecret": "keys"}}},
            "frontend.auth: allowAnonymous lets every client in, existingSecret only those with a key",
        ),
        ({"frontend": {"httpRoute": {"enabled": True}}}, "frontend.httpRoute.parentRefs: write a Gateway"),
        ({"frontend": {"inferencePool": {"enabled": True}}}, "frontend.inferencePool: a picker chooses pods of models"),
        (
            {"frontend": {"sidecar": True, "inferencePool": {"enabled": True}}},
            "frontend.inferencePool.endpointPicker.name: write the Service",
        ),
        (
            {"frontend": {"sidecar": True}, "models": [{"name": "demo"}, {"name": "b", "source": CHECKPOINT}]},
            "frontend.sidecar: a pod serves one model, and models has 2: install a release for each",
        ),
        ({"frontend": {"sidecar": True, "podLabels": {"a": "b"}}}, "frontend.podLabels: with frontend.sidecar the"),
        ({"frontend": {"sidecar": True, "replicas": 2}}, "frontend.replicas, frontend.autoscaling: with frontend.side"),
        (
            {"frontend": {"sidecar": True}} | with_demo(autoscaling={"enabled": True, "scaleToZero": True}),
            "frontend.sidecar: autoscaling.scaleToZero needs a frontend that counts the requests of a stopped model",
        ),
        (with_demo(podSpec={"containers": []}), "podSpec.containers would replace the chart's own: write extraCont"),
        ({"frontend": {"podSpec": {"volumes": []}}}, "frontend: podSpec.volumes would replace the chart's own"),
        (with_demo(source={"adapters": {"a": "b"}}), "source.existingClaim: write the name of the claim with b"),
        (
            with_demo(source={**CLAIM, "artifact": "x", "adapters": {"a": "b"}}),
            "source.adapters: the artifact has its own: build it with --adapter",
        ),
        ({"models": {"Demo": {}}}, "invalid propertyName 'Demo'"),
        (
            values_of("nodes") | {"resourceProfiles": {"h100": {"gpu": ""}}},
            "resourceProfiles.h100.gpu: a download cannot detect the GPU: write h100, h200, b200, a100 or l40s",
        ),
        (
            {"frontend": {"sidecar": True, "extraInitContainers": [{"name": "a"}]}},
            "frontend.extraInitContainers: with frontend.sidecar the",
        ),
        (
            with_demo(podSpec={"initContainers": []}),
            "podSpec.initContainers would replace the chart's own: write extraI",
        ),
        (
            {"frontend": {"defaultModel": "nope"}} | with_demo(aliases=["other"]),
            'frontend.defaultModel: no model has the name "nope": write one of demo, other',
        ),
        (
            {"frontend": {"service": {"nodePort": 30080}}},
            "frontend.service.nodePort is for the type NodePort or LoadBalancer: the type is ClusterIP",
        ),
        (
            {"frontend": {"service": {"type": "NodePort", "loadBalancerClass": "x"}}},
            "frontend.service.loadBalancerClass is for the type LoadBalancer: the type is NodePort",
        ),
        (
            with_demo(build={"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}),
            "build.resources: requests.memory 2Gi exceeds limits.memory 1Gi",
        ),
        ({"commonLabels": {"helm.sh/chart": "x"}}, "commonLabels: helm.sh/chart is the chart's own"),
        (with_demo(podLabels={"conch/model": "x"}), "(demo): podLabels: conch/model is the chart's own"),
        (with_demo(extraEnv=[{"name": "HOME", "value": "/x"}]), "(demo): extraEnv: HOME is the chart's own"),
        (with_demo(extraEnv=[{"name": "A"}, {"name": "A"}]), "extraEnv: A occurs twice: remove one"),
        (with_demo(extraVolumes=[{"name": "tmp", "emptyDir": {}}]), "extraVolumes: tmp is the chart's own"),
        (
            with_demo(extraVolumeMounts=[{"name": "tmp", "mountPath": "/tmp/"}]),
            "extraVolumeMounts: /tmp is the chart's",
        ),
        (
            {"frontend": {"extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}]}},
            "frontend: extraVolumeMounts: the volume ca is missing: add it to extraVolumes",
        ),
        (
            with_demo(resources={"requests": {"memory": "2049Mi"}}),
            "resources: requests.memory 2049Mi exceeds limits.memory 2Gi, which may be a default: write both",
        ),
        ({"frontend": {"resources": {"limits": {"cpu": 0.1}}}}, "requests.cpu 200m exceeds limits.cpu 0.1"),
        ({"frontend": {"ingress": {"hosts": ["https://llm.example.com"]}}}, "/frontend/ingress/hosts/0"),
        ({"frontend": {"podLabels": {"team": "a b"}}}, "/frontend/podLabels/team"),
        ({"networkPolicy": {"apiFrom": [{"podselector": {}}]}}, "/networkPolicy/apiFrom/0"),
        (
            values_of("nodes") | {"multinode": {"sshKeySecret": "a", "env": {"HOME": "/x"}}},
            "multinode.env: HOME is the",
        ),
        (with_demo(resources={"limits": {"memory": "8GB"}}), "/models/0/resources/limits/memory"),
        (with_demo(source={**CLAIM, "path": "../x"}), "/models/0/source/path"),
    ],
)
def test_a_contradiction_is_refused_with_the_values_to_write_instead(values: Values, message: str) -> None:
    assert message in refusal(values)


@pytest.mark.parametrize("place", ["memory", "/data/store.db"])
@pytest.mark.parametrize("scale", [{"replicas": 2}, {"autoscaling": {"enabled": True}}])
def test_a_store_of_one_pod_is_refused_for_several(place: str, scale: Values) -> None:
    said = refusal({"frontend": {"store": {"place": place}, **scale}})
    assert f"frontend.store.place {place}: several frontend pods" in said and "frontend.store.existingSecret" in said
    sidecar = with_demo(**scale) | {"frontend": {"sidecar": True, "store": {"place": place}}}
    assert f"frontend.store.place {place}: several frontend pods" in refusal(sidecar)
    assert render({"frontend": {"store": {"place": place}}}).objects


def test_two_places_of_the_store_are_refused() -> None:
    said = refusal({"frontend": {"store": {"place": "none", "existingSecret": "store"}}})
    assert "frontend.store: place none and existingSecret contradict each other" in said
    assert "frontend.store.place" in refusal({"frontend": {"store": {"place": "redis://store"}}}).replace("/", ".")
