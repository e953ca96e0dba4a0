"""Models of llama.cpp on NVIDIA's GPUs."""

from __future__ import annotations

from tests.gpu_image import instructions
from tests.helm.cases import case, values_of
from tests.helm.chart import PodTemplate, pods, render
from tests.helm.test_builds import before_serving, folder_of

GPU = "nvidia.com/gpu"


def pod_of(name: str) -> PodTemplate:
    [pod] = [pod for pod in pods(case("cuda")) if pod.owner == f"Deployment/demo-{name}"]
    return pod


def test_every_container_of_such_a_model_runs_in_the_cuda_image_on_the_gpus_of_its_pod() -> None:
    """llama.cpp's build for CUDA cannot be imported without the driver, which a container has with a GPU alone."""
    for name, number in (("qwen", "1"), ("llama", "2")):
        containers = pod_of(name).containers
        assert {container["image"] for container in containers} == {"conch-triton-cuda:0.1.0"}
        for container in containers:
            assert container["resources"]["limits"][GPU] == container["resources"]["requests"][GPU] == number
    assert [container["name"] for container in pod_of("qwen").containers] == ["download", "repository", "triton"]


def test_the_profile_has_the_other_resources_and_the_tolerations() -> None:
    resources = pod_of("llama").main["resources"]
    assert resources["requests"] == {"cpu": "4", "memory": "16Gi", GPU: "2"}
    assert resources["limits"] == {"memory": "64Gi", GPU: "2"}
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod_of("qwen").spec["tolerations"]


def test_the_same_artifact_serves_on_cores_and_on_gpus() -> None:
    """A number of GPUs is an input of an engine's artifact."""
    values = values_of("cuda")
    before = folder_of(render(values), "qwen")
    del values["models"][0]["gpus"]
    on_cores = render(values)
    assert folder_of(on_cores, "qwen") == before
    assert GPU not in before_serving(on_cores, "qwen")["download"]["resources"]["limits"]


def test_the_cuda_image_differs_from_that_of_cores_in_the_build_of_llama_cpp_and_its_libraries() -> None:
    on_cores, cuda = instructions("triton-cpu"), instructions("triton-cuda")
    assert [
        line.replace("cuda12.txt", "cpu.txt") for line in cuda if "libgomp1" not in line and "NVIDIA" not in line
    ] == [line for line in on_cores if "apt-get" not in line]


def test_the_command_names_each_gpu_of_the_pod() -> None:
    """A pod that lacked one served on its cores. `render` refuses a named device that is not there."""
    commands = [
        next(each for each in pod_of(name).containers if each["name"] == "repository")["command"]
        for name in ("qwen", "llama")
    ]
    assert "--device=CUDA0" in commands[0] and "--device=CUDA0,CUDA1" in commands[1]
    assert all("--gpu-layers=auto" in command for command in commands)


def test_a_build_container_has_the_claims_of_the_gpus() -> None:
    values = values_of("cuda")
    values["resourceProfiles"] = {"cuda": {"gpuResource": ""}}
    values["models"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    values["models"][0]["gpus"]["layers"] = 20
    containers = before_serving(render(values), "qwen")
    for name in ("download", "repository"):
        assert containers[name]["resources"]["claims"] == [{"name": "gpu"}]
    assert "--gpu-layers=20" in containers["repository"]["command"]
