"""Builds and downloads in the pods that serve, and the cache."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from model_repository.engine.tensorrt_llm.llm_options import read_llm_options
from tests.helm.cases import CASES, SHAPES, case, with_gpu_model
from tests.helm.chart import PodTemplate, Rendered, Values, pods, render
from tests.waiting import DEADLINE_S

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


def folder_of(rendered: Rendered) -> str:
    """Return the folder in the cache."""
    return str(before_serving(rendered)["repository"]["command"][3])


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
    ],
)
def test_other_values_find_the_artifact_again(change: Values) -> None:
    """An alias or a mirror of the registry built the engine anew, and the model answered 503 meanwhile."""
    assert folder_of(render(with_gpu_model())) == folder_of(render(change))


def test_names_are_given_to_what_is_rendered_and_not_to_what_is_built() -> None:
    containers = before_serving(render(with_gpu_model(aliases=["llama"])))
    assert "--alias=llama" in containers["repository"]["command"]
    assert "--alias=llama" not in containers["build"]["command"]


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


def test_only_the_cache_outlives_the_release_unless_values_say_otherwise() -> None:
    for name in SHAPES:
        for each in render(CASES[name]).objects:
            annotations = each["metadata"].get("annotations", {})
            is_kept = annotations.get("helm.sh/resource-policy") == "keep"
            assert is_kept is (each["kind"] == "PersistentVolumeClaim")
            # A hook's objects are not the release's: they stay where they are not deleted.
            if "helm.sh/hook" in annotations:
                assert each["kind"] == "Pod"
                assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    values = with_gpu_model()
    values["cache"]["keepOnUninstall"] = False
    [claim] = render(values).of_kind("PersistentVolumeClaim")
    assert "annotations" not in claim["metadata"]


# --- the commands, as they run ----------------------------------------------------------------------------------------


def run(container: dict[str, Any], folder: Path, status: int = 0) -> tuple[int, list[str]]:
    """Run a container's command on this folder of the cache, with a `python3` that prints its arguments."""
    programs = folder / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "python3").write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    (programs / "python3").chmod(0o755)
    shell, option, script, _, *arguments = container["command"]
    done = subprocess.run(
        [shell, option, script, folder, *arguments],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_an_artifact_in_the_cache_is_rendered_and_not_built_again(tmp_path: Path) -> None:
    containers = before_serving(render(with_gpu_model(serving={"maxSequences": 4})))
    artifact = tmp_path / "artifacts" / "llama-0123"
    artifact.mkdir(parents=True)
    (artifact / "manifest.json").touch()
    assert run(containers["build"], tmp_path) == (0, [f"{artifact}/manifest.json"])
    rendered = f"-m build_engines render {artifact}/ --repository=/state/repository --max-sequences=4"
    assert run(containers["repository"], tmp_path) == (0, [rendered])


def test_an_unfinished_artifact_is_built_again_and_a_failed_build_fails_its_container(tmp_path: Path) -> None:
    unfinished = tmp_path / "artifacts" / ".llama-0123.aside"
    unfinished.mkdir(parents=True)
    (unfinished / "manifest.json").touch()
    status, printed = run(before_serving(render(with_gpu_model()))["build"], tmp_path, status=1)
    assert status == 1, "the cluster starts it again, after a while"
    assert printed[0].startswith("-m build_engines build meta-llama/Meta-Llama-3.1-8B-Instruct --runtime=tensorrt_llm")


def test_a_model_of_every_example_is_built_in_the_folder_that_is_rendered() -> None:
    for name in ("gpu-values", "llama3-1-405b-h100", "qwen2-5-7b-h200", "mixed"):
        for pod in pods(render(CASES[name])):
            containers = {each["name"]: each for each in pod.spec.get("initContainers", ())}
            for build in (containers[key] for key in ("build", "download") if key in containers):
                folder = containers["repository"]["command"][3]
                assert build["command"][3] == folder
                assert f"--home={folder}" in build["command"]
