"""Builds and downloads in the pods that serve, and the cache."""

from __future__ import annotations

import functools
import json
import operator
import re
import shutil
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from build_engines.__main__ import main as build_engines
from helm.generate.values import leaves
from model_repository.engine.tensorrt_llm.llm_options import read_llm_options
from tests.build_engines.test_render import parameters_in
from tests.build_engines.test_render_artifacts import write_artifact
from tests.helm.cases import CASES, SHAPES, case, with_gpu_model
from tests.helm.chart import CHART, NAMESPACE, RELEASE, PodTemplate, Rendered, Values, pods, render, schema

ENGINE = {"runtime": "tensorrt_llm"}
SOURCE = {"huggingface": {"repo": "meta-llama/Llama-3.1-8B-Instruct", "revision": "v2"}}


def pod_of_model(rendered: Rendered, name: str = "llama") -> PodTemplate:
    """Return the pod of a model, or the leader of its group."""
    [found] = [
        pod
        for pod in pods(rendered)
        if pod.owner in (f"Deployment/demo-{name}", f"LeaderWorkerSet/demo-{name}-group/leader")
    ]
    return found


def before_serving(rendered: Rendered, name: str = "llama") -> dict[str, dict[str, Any]]:
    """Return the containers that run before the server, by name and in their order."""
    return {container["name"]: container for container in pod_of_model(rendered, name).spec["initContainers"]}


def folder_of(rendered: Rendered, name: str = "llama") -> str:
    """Return the folder of the artifact in the cache."""
    return folders_of(next(iter(before_serving(rendered, name).values())))[0]


def folders_of(build: dict[str, Any]) -> list[str]:
    """Return the folders in the cache in which a build looks for its artifact."""
    return [word.removeprefix("--kept=") for word in build["command"] if word.startswith("--kept=")]


@pytest.mark.parametrize(
    "change",
    [
        with_gpu_model(engine={**ENGINE, "precision": "fp8"}),
        with_gpu_model(engine={**ENGINE, "maxSeqLen": 4096}),
        with_gpu_model(engine={**ENGINE, "options": {"prompt_logprobs": "true"}}),
        with_gpu_model(source=SOURCE),
        with_gpu_model(parallelism={"tensor": 2}, gpus={"perNode": 2, "profile": "h100"}),
        with_gpu_model(gpus={"perNode": 1, "profile": "h200"}),
        with_gpu_model(build={"enabled": True, "extraArgs": ["--workers=1"]}),
        with_gpu_model() | {"images": {"tritonGpu": {"tensorrtLlmVersion": "1.2.0"}}},
    ],
)
def test_values_that_change_the_artifact_change_its_folder(change: Values) -> None:
    assert folder_of(render(with_gpu_model())) != folder_of(render(change))


def test_another_release_of_tensorrt_llm_changes_the_folder() -> None:
    pytorch = {"engine": {**ENGINE, "backend": "pytorch"}, "build": {}}
    newer = with_gpu_model(**pytorch, image="tensorrtLlm")
    assert folder_of(render(with_gpu_model(**pytorch))) != folder_of(render(newer))


@pytest.mark.parametrize(
    "change",
    [
        with_gpu_model(aliases=["llama"]),
        with_gpu_model(engine={**ENGINE, "llmOptions": {"enable_attention_dp": True}}),
        with_gpu_model(replicas=3),
        with_gpu_model(
            loadTimeoutSeconds=77, serving={"maxSequences": 4, "replicasPerPod": 2}, limits={"maxInFlight": 3}
        ),
        with_gpu_model(shmSize="9Gi", tolerations=[{"key": "x"}], podLabels={"x": "y"}),
        with_gpu_model(build={"enabled": True, "resources": {"limits": {"memory": "1Ti"}}}),
        with_gpu_model() | {"images": {"tritonGpu": {"tag": "0.2.0", "digest": ""}}},
        with_gpu_model() | {"global": {"imageRegistry": "mirror.example.com"}},
        with_gpu_model() | {"huggingface": {"existingSecret": "token"}},
        with_gpu_model() | {"resourceProfiles": {"h100": {"gpu": "h100", "gpuProduct": "NVIDIA-H100-NVL"}}},
        with_gpu_model() | {"frontend": {"replicas": 2}, "commonLabels": {"a": "b"}},
        with_gpu_model(servedName="llama3.1:8b"),
    ],
)
def test_other_values_find_the_artifact_again(change: Values) -> None:
    """An alias or a mirror of the registry built the engine anew, and the model answered 503 meanwhile."""
    assert folder_of(render(with_gpu_model())) == folder_of(render(change))


def test_another_name_finds_the_artifact_again_and_is_given_to_what_is_rendered() -> None:
    """A new name compiled the engine anew, for an hour."""
    renamed = render(with_gpu_model(name="other", servedName="other/name"))
    assert folder_of(renamed, "other") == folder_of(render(with_gpu_model()))
    assert "--name=other/name" in before_serving(renamed, "other")["repository"]["command"]


def test_artifacts_of_this_chart_and_of_the_one_before_are_looked_for_in_their_folders() -> None:
    """The first folder is that of the charts since 1508a870, the second that of the charts of da9c4552 and f4a745a."""
    known = [
        ("gpu-values", "llama-70b", "Llama-3.1-70B-Instruct-af22e154", "llama-70b-5c1e6283"),
        ("gpu-values", "qwen-7b", "Qwen2.5-7B-Instruct-4d4d82ff", "qwen-7b-2985b021"),
        ("nodes-values", "llama-405b", "Llama-3.1-405B-Instruct-e587243c", "llama-405b-b2d7b5a6"),
        ("plain-values", "qwen", "qwen-188348ff", "qwen-9a6ca571"),
        ("mixed", "llama-8b", "Meta-Llama-3.1-8B-Instruct-9ca2012b", "llama-8b-a5d3c486"),
        ("retrieval", "chat", "Qwen3-8B-GGUF-65e90a97", "chat-b306496b"),
        ("retrieval", "embedder", "bge-m3-gguf-1d367ba6", "embedder-6feada8b"),
        ("llama3-1-405b-h100", "llama3-1-405b", "Meta-Llama-3.1-405B-Instruct-b646dbd9", "llama3-1-405b-b1a5413e"),
    ]
    for case_name, model, *folders in known:
        build = next(iter(before_serving(render(CASES[case_name]), model).values()))
        assert folders_of(build) == [f"/models/{folder}" for folder in folders]


def texts_of(chart: Path, values: Values) -> dict[str, str]:
    """Return the files that a chart in a folder renders to."""
    files: dict[str, str] = helm_python.Chart.load(chart).render(values, name=RELEASE, namespace=NAMESPACE)
    return files


def test_a_new_value_beside_the_inputs_of_an_artifact_renames_none(tmp_path: Path) -> None:
    """The key was made of all values of an engine but one: a harmless new one would have built each engine anew."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    (copy / "values.schema.json").unlink()
    values = yaml.safe_load((copy / "values.yaml").read_text())
    model = values["modelDefaults"]
    for group in (model["engine"], model["source"], model["source"]["huggingface"], model["parallelism"]):
        group["madeUp"] = "new"
    (copy / "values.yaml").write_text(yaml.safe_dump(values))
    texts = ["".join(texts_of(chart, CASES["gpu-values"]).values()) for chart in (CHART, copy)]
    before, after = (re.findall(r"--kept=\S+", text) for text in texts)
    assert before == after != []


def test_each_value_of_an_engine_and_its_source_is_an_input_of_the_artifact_or_known_to_be_none(tmp_path: Path) -> None:
    copy = shutil.copytree(CHART, tmp_path / "chart")
    model = """dict "root" . "model" (include "conch.models" . | fromJsonArray | first)"""
    (copy / "templates" / "inputs.yaml").write_text(f"""{{{{ include "conch.model.inputs" ({model}) }}}}""")
    source = {"huggingface": {"repo": "org/model", "gguf": "Q8_0"}}
    files = texts_of(copy, {"models": [{"name": "demo", "source": source}], "cache": {"type": "pvc"}})
    inputs = json.loads(files["conch/templates/inputs.yaml"])

    def is_input(path: str) -> bool:
        group, _, rest = path.partition(".")
        *folders, name = rest.split(".")
        return name in functools.reduce(operator.getitem, folders, inputs[group])

    declared = {path.removeprefix("models[].") for path, _ in leaves(schema()) if path.startswith("models[].")}
    declared = {path for path in declared if path.partition(".")[0] in {"engine", "source", "parallelism"}}
    others = {path for path in declared if not is_input(path)}
    assert others == {"engine.llmOptions"}, "if the artifact depends on it, `conch.model.inputs` must name it"


def test_keywords_of_tensorrt_llm_are_given_to_what_is_rendered() -> None:
    given = {"dtype": "bfloat16", "enable_attention_dp": True, "kv_cache_config": {"host_cache_size": 64000000000}}
    containers = before_serving(render(with_gpu_model(engine={**ENGINE, "llmOptions": given})))
    words = [word for word in containers["repository"]["command"] if word.startswith("--llm-option=")]
    assert read_llm_options([word.removeprefix("--llm-option=") for word in words]) == given
    assert not any(word.startswith("--llm-option") for word in containers["build"]["command"])


def test_replicas_of_a_pod_are_rendered_and_not_built() -> None:
    containers = before_serving(render(with_gpu_model(serving={"replicasPerPod": 4})))
    assert "--replicas=4" in containers["repository"]["command"]
    assert not [word for word in containers["build"]["command"] if word.startswith("--replicas")]


def test_a_pod_builds_or_downloads_before_it_renders_and_serves() -> None:
    for name, first in (("llama-70b", "build"), ("qwen-7b", "download"), ("qwen-32b", None)):
        containers = before_serving(case("gpu"), name)
        assert list(containers) == ([first] if first else []) + ["repository"]
    assert case("gpu").of_kind("Job") == []


def test_a_build_takes_the_gpus_of_its_pod_and_a_download_asks_for_none() -> None:
    [build] = [each for name, each in before_serving(case("gpu"), "llama-70b").items() if name == "build"]
    assert build["resources"]["limits"]["nvidia.com/gpu"] == "2"
    download = before_serving(case("gpu"), "qwen-7b")["download"]
    assert "nvidia.com/gpu" not in str(download["resources"])
    assert download["resources"]["requests"] == {"cpu": "2", "memory": "8Gi"}


@pytest.mark.parametrize(
    ("of_model", "of_build", "expected"),
    [
        ({}, {}, {}),
        ({"memory": "2Gi"}, {}, {"memory": "8Gi"}),
        ({"memory": "16Gi", "cpu": "1"}, {}, {"memory": "16Gi", "cpu": "2"}),
        ({"memory": "16Gi"}, {"requests": {"memory": "32Gi"}}, {"memory": "32Gi"}),
        ({"memory": "16Gi"}, {"limits": {"memory": "9Gi"}}, {"memory": "9Gi"}),
    ],
)
def test_a_download_has_the_limits_that_a_quota_may_require(
    of_model: dict[str, str], of_build: dict[str, Any], expected: dict[str, str]
) -> None:
    """A quota on limits.memory refused the pods of a model with a limit: its download had none."""
    settings: Values = {"resources": {"limits": of_model}, "build": {"resources": of_build}}
    values = with_gpu_model(engine={**ENGINE, "backend": "pytorch"}, **settings)
    values["resourceProfiles"] = {"h100": {"gpu": "h100", "perGpu": {"cpu": "1", "memory": "1Gi"}}}
    assert before_serving(render(values))["download"]["resources"]["limits"] == expected


def test_a_model_over_several_nodes_is_built_by_its_leader_on_the_gpus_of_one() -> None:
    rendered = render(CASES["llama3-1-405b-h100"])
    build = before_serving(rendered, "llama3-1-405b")["build"]
    assert {"--backend=engine", "--gpus=16", "--nodes=2", "--tensor=8"} <= set(build["command"])
    assert build["resources"]["limits"]["nvidia.com/gpu"] == "8"
    [worker] = [pod for pod in pods(rendered) if pod.owner.endswith("/worker")]
    assert "initContainers" not in worker.spec


def test_only_builds_get_the_token_and_a_server_does_not_write_to_the_cache() -> None:
    for pod in pods(case("gpu")):
        for container in pod.containers:
            mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
            is_build = container["name"] in ("build", "download")
            assert ("huggingface" in mounts) is is_build
            if "models" in mounts:
                assert mounts["models"]["readOnly"] is (container["name"] == "triton")
    build = before_serving(case("gpu"), "llama-70b")["build"]
    environment = {each["name"]: each.get("value") for each in build["env"]}
    assert environment["HF_TOKEN_PATH"] == "/etc/conch/huggingface/token"


def test_old_pods_serve_until_a_new_one_has_built_unless_values_say_otherwise() -> None:
    rendered = render(with_gpu_model())
    assert rendered.one("Deployment", "demo-llama")["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    assert "it needs 1 free GPUs of a node" in rendered.notes
    full = render(with_gpu_model(strategy={"maxSurge": 0, "maxUnavailable": 1}))
    assert "free GPUs" not in full.notes
    assert "while a new version is built and loaded, it answers 503" in full.notes


def test_a_rollout_may_take_as_long_as_a_build() -> None:
    for seconds in (60, 86400):
        rendered = render(with_gpu_model(build={"enabled": True, "timeoutSeconds": seconds}, loadTimeoutSeconds=100))
        assert rendered.one("Deployment", "demo-llama")["spec"]["progressDeadlineSeconds"] == 600 + 100 + seconds


def test_only_the_cache_and_the_keys_outlive_the_release_unless_values_say_otherwise() -> None:
    for name in SHAPES:
        for each in render(CASES[name]).objects:
            annotations = each["metadata"].get("annotations", {})
            is_kept = annotations.get("helm.sh/resource-policy") == "keep"
            assert is_kept is (each["kind"] in ("PersistentVolumeClaim", "Secret"))
            # A hook's objects are not the release's: they stay where they are not deleted.
            if annotations.get("helm.sh/hook") == "test":
                assert each["kind"] == "Pod"
                assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    values = with_gpu_model()
    values["cache"]["keepOnUninstall"] = False
    [claim] = render(values).of_kind("PersistentVolumeClaim")
    assert "annotations" not in claim["metadata"]


# --- the commands, as they run ----------------------------------------------------------------------------------------


def run(container: dict[str, Any], folder: Path) -> None:
    """Run a container's command with volumes in this folder."""
    program, *words = container["command"][2:]
    assert program == "build_engines"
    assert build_engines([re.sub("(^|=)/(models|state)/", rf"\1{folder}/\2/", word) for word in words]) == 0


def test_an_artifact_in_the_folder_of_the_chart_before_is_served_and_not_built(tmp_path: Path) -> None:
    containers = before_serving(case("sidecar"), "qwen")
    former = tmp_path / folders_of(containers["download"])[1].removeprefix("/") / "artifacts"
    former.mkdir(parents=True)
    built = write_artifact(former / "model-0123", "the-name-before")
    write_artifact(former / "model-4567", "unusable")
    (former / "model-4567" / "manifest.json").write_text('{"format": 3}')
    for container in containers.values():
        run(container, tmp_path)
    [config, *_] = (tmp_path / "state" / "repository").glob("*/config.pbtxt")
    found = parameters_in(config.read_text(encoding="utf-8"))
    assert (found.model_id, found.artifact_dir) == ("Qwen/Qwen2.5-0.5B-Instruct", built)


def test_a_model_of_every_example_is_built_in_the_folder_that_is_rendered() -> None:
    for name in ("gpu-values", "llama3-1-405b-h100", "qwen2-5-7b-h200", "mixed"):
        for pod in pods(render(CASES[name])):
            containers = {each["name"]: each for each in pod.spec.get("initContainers", ())}
            for build in (containers[key] for key in ("build", "download") if key in containers):
                assert containers["repository"]["command"][4] == "/state/artifact"
                assert {"--home=/models/store", "--link=/state/artifact"} <= set(build["command"])
