"""Jobs that build or download, the cache, and the script that waits for them. Points 36 and 37 of the checklist."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helm.cases import CASES, case, with_gpu_model
from tests.helm.chart import CHART, Rendered, Values, pods, render
from tests.helm.node_group import AS_PROCESS_1, heard, tell
from tests.waiting import DEADLINE_S

SCRIPT = CHART / "files" / "render-when-built.sh"
ENGINE = {"runtime": "tensorrt_llm"}


def job_of(rendered: Rendered) -> dict[str, Any]:
    [found] = rendered.of_kind("Job")
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {**ENGINE, "precision": "fp8"}},
        {"engine": {**ENGINE, "maxSeqLen": 4096}},
        {"engine": {**ENGINE, "options": {"prompt_logprobs": "true"}}},
        {"source": {"huggingface": {"repo": "meta-llama/Llama-3.1-8B-Instruct", "revision": "v2"}}},
        {"parallelism": {"tensor": 2}, "gpus": {"perNode": 2, "profile": "h100"}},
        {"gpus": {"perNode": 1, "profile": "h200"}},
        {"aliases": ["llama"]},
        {"build": {"enabled": True, "extraArgs": ["--workers=1"]}},
    ],
)
def test_36_values_that_change_the_artifact_change_the_job(change: dict[str, Any]) -> None:
    before, after = (job_of(render(with_gpu_model(**settings))) for settings in ({}, change))
    assert before["metadata"]["name"] != after["metadata"]["name"]
    assert _state_dir(before) != _state_dir(after)


def test_36_another_image_makes_another_job() -> None:
    before, after = (
        job_of(render(with_gpu_model() | {"images": {"tritonGpu": {"tag": tag}}})) for tag in ("0.1.0", "0.2.0")
    )
    assert before["metadata"]["name"] != after["metadata"]["name"]


@pytest.mark.parametrize(
    "change",
    [
        with_gpu_model(replicas=3),
        with_gpu_model(loadTimeoutSeconds=77, serving={"maxSequences": 4}, limits={"maxInFlight": 3}),
        with_gpu_model(drain={"maxStreamSeconds": 5}, autoscaling={"enabled": True}),
        with_gpu_model() | {"frontend": {"replicas": 2}, "metrics": {"serviceMonitor": {"enabled": True}}},
    ],
)
def test_36_values_that_keep_the_artifact_keep_the_template_of_the_job(change: Values) -> None:
    before, after = job_of(render(with_gpu_model())), job_of(render(change))
    assert before["metadata"]["name"] == after["metadata"]["name"]
    assert before["spec"]["template"] == after["spec"]["template"], "it cannot be changed"


@pytest.mark.parametrize(
    "change",
    [
        with_gpu_model(shmSize="9Gi"),
        with_gpu_model(tolerations=[{"key": "x"}]),
        with_gpu_model(build={"enabled": True, "resources": {"limits": {"memory": "1Ti"}}}),
        with_gpu_model() | {"huggingface": {"existingSecret": "token"}},
        with_gpu_model() | {"commonLabels": {"a": "b"}},
    ],
)
def test_36_another_pod_for_the_same_artifact_is_another_job_that_finds_it(change: Values) -> None:
    before, after = job_of(render(with_gpu_model())), job_of(render(change))
    assert before["metadata"]["name"] != after["metadata"]["name"], "a Job's template cannot be changed"
    assert _state_dir(before) == _state_dir(after)


def test_36_a_jobs_template_has_no_version_of_the_chart() -> None:
    labels = job_of(render(with_gpu_model()))["spec"]["template"]["metadata"]["labels"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels)


def test_the_pods_wait_in_the_folder_that_the_job_fills() -> None:
    rendered = render(with_gpu_model())
    [serving] = [pod for pod in pods(rendered) if pod.owner == "Deployment/demo-llama"]
    [init] = serving.spec["initContainers"]
    assert init["command"][2] == _state_dir(job_of(rendered))


def test_a_build_takes_gpus_and_a_download_takes_none() -> None:
    jobs = {each["metadata"]["name"].rpartition("-")[0]: each for each in case("gpu").of_kind("Job")}
    build, download = (jobs[f"demo-build-{name}"]["spec"]["template"]["spec"] for name in ("llama-70b", "qwen-7b"))
    assert build["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in str(download["containers"][0]["resources"])
    assert download["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "8Gi"}
    assert (build["containers"][0]["name"], download["containers"][0]["name"]) == ("build", "download")
    assert set(jobs) == {"demo-build-llama-70b", "demo-build-qwen-7b"}


def test_where_no_gpus_are_to_spare_a_build_can_go_before_the_pods() -> None:
    rendered = render(with_gpu_model(replicas=0))
    assert rendered.one("Deployment", "demo-llama")["spec"]["replicas"] == 0
    assert job_of(rendered)["metadata"]["name"] == job_of(render(with_gpu_model()))["metadata"]["name"]
    assert "The build of llama takes 1 GPUs of one node beside" in render(with_gpu_model()).notes
    assert "The build of llama" not in rendered.notes
    evicting = render(with_gpu_model(build={"enabled": True, "priorityClassName": "builds"})).notes
    assert "The build of llama" not in evicting
    assert "pods below the priority class builds are evicted" in evicting


def test_a_drained_node_does_not_use_up_a_builds_tries() -> None:
    spec = job_of(render(with_gpu_model()))["spec"]
    [rule] = spec["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which such a policy needs


def test_a_model_over_several_nodes_is_built_on_the_gpus_of_one() -> None:
    [container] = job_of(render(CASES["llama3-1-405b-h100"]))["spec"]["template"]["spec"]["containers"]
    assert {"--backend=engine", "--gpus=16", "--nodes=2", "--tensor=8"} <= set(container["command"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_only_jobs_get_the_token_and_as_a_file() -> None:
    with_token = {
        pod.owner.partition("/")[0]
        for pod in pods(case("gpu"))
        for volume in pod.spec["volumes"]
        if volume.get("secret", {}).get("secretName") == "huggingface"
    }
    assert with_token == {"Job"}
    [first, _] = case("gpu").of_kind("Job")
    environment = {each["name"]: each["value"] for each in first["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["HF_TOKEN_PATH"] == "/etc/conch/huggingface/token"


def test_37_the_cache_outlives_the_release_unless_values_say_otherwise() -> None:
    values = with_gpu_model()
    values["cache"]["keepOnUninstall"] = False
    [claim] = render(values).of_kind("PersistentVolumeClaim")
    assert "annotations" not in claim["metadata"]
    assert case("nodes").of_kind("PersistentVolumeClaim") == []


def start_script(folder: Path, seconds: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Run the waiting script with a `python3` that only prints what it was called with."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (programs / "python3").chmod(0o755)
    return subprocess.Popen(
        [*AS_PROCESS_1, "/bin/sh", SCRIPT, folder, seconds, "--repository=/r", "--max-sequences=4"],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_finished_artifact_is_rendered(tmp_path: Path) -> None:
    artifact = tmp_path / "artifacts" / "llama-0123"
    artifact.mkdir(parents=True)
    (artifact / "manifest.json").touch()
    said, _ = start_script(tmp_path, "0", tmp_path).communicate()
    assert said.splitlines()[1:] == [f"-m build_engines render {artifact} --repository=/r --max-sequences=4"]


def test_an_unfinished_artifact_is_waited_for_and_the_job_is_named_when_the_time_is_up(tmp_path: Path) -> None:
    unfinished = tmp_path / "artifacts" / ".llama-0123.aside"
    unfinished.mkdir(parents=True)
    (unfinished / "manifest.json").touch()
    script = start_script(tmp_path, "0", tmp_path)
    said, _ = script.communicate()
    assert script.returncode == 1
    assert f"error: no artifact in {tmp_path} after 0 s: check whether its Job has failed" in said


def test_a_pod_that_waits_for_its_artifact_ends_at_sigterm_and_returns_its_gpus(tmp_path: Path) -> None:
    script = start_script(tmp_path, "3600", tmp_path)
    heard(script, f"waiting for an artifact in {tmp_path}, at most 3600 s")
    tell(script, signal.SIGTERM)
    script.communicate(timeout=DEADLINE_S)
    assert script.returncode == 143


def _state_dir(job: dict[str, Any]) -> str:
    [container] = job["spec"]["template"]["spec"]["containers"]
    [found] = [word.partition("=")[2] for word in container["command"] if word.startswith("--state-dir=")]
    return str(found)
