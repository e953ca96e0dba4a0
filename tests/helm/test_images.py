"""The Dockerfiles: pinned, without root, with the install commands that `make` uses. `make images` builds them."""

from __future__ import annotations

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from frontend.launcher.triton_server import FULL_TRITON
from tests.gpu_image import instructions
from tests.helm.cases import values_of, with_gpu_model
from tests.helm.chart import CHART, default_values, metadata, pods, render

IMAGES = sorted((CHART / "images").glob("*.Dockerfile"))
PROJECT = CHART.parent


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_an_image_is_pinned_and_without_root(path) -> None:
    found = instructions(path.stem)
    base = [line for line in found if line.startswith("FROM ")][-1]
    digest = "@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3"
    nvidia = (":26.07-trtllm-python-py3", "/tensorrt-llm/release:${TENSORRT_LLM}")
    assert base.endswith((f":3.12.15-slim-bookworm{digest}", *nvidia))
    assert base.endswith(nvidia) or "apt-get update && apt-get upgrade --yes" in "\n".join(found)
    context = render().one("Deployment", "demo-frontend")["spec"]["template"]["spec"]["securityContext"]
    user, group = context["runAsUser"], context["runAsGroup"]
    assert [line for line in found if line.startswith("USER ")] == [f"USER {user}:{group}"]
    # `useradd --user-group` gives a group below 60000, whatever the user's number is.
    text = "\n".join(found)
    assert f"groupadd --gid {group} conch" in text
    assert f"--uid {user} --gid {group} " in text


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_an_image_keeps_nothing_of_its_building(path) -> None:
    installs = [line for line in instructions(path.stem) if re.search("pip install|beside-tensorrt-llm.sh -", line)]
    assert all("--no-cache-dir" in install for install in installs)
    assert installs[-1].endswith("build ./*.egg-info")


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_an_image_copies_only_existing_files(path) -> None:
    copies = [line.split() for line in instructions(path.stem) if line.startswith("COPY ") and "--from" not in line]
    copied = [word for words in copies for word in words[1:-1]]
    assert {"pyproject.toml", "frontend", "model_repository"} <= set(copied)
    sent = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in copied:
        assert (PROJECT / name).exists(), name
        assert any(fnmatch(f"!{name}", line) for line in sent), f"{name} is not sent to the builder"


def test_the_images_are_those_that_the_chart_names() -> None:
    assert {image["repository"] for image in default_values()["images"].values()} == {
        f"conch-{path.stem}" for path in IMAGES
    }
    assert [pod for pod in pods(render()) if pod.main["image"].startswith("conch-triton-cpu:")]


def test_cpu_images_are_installed_as_make_installs() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    assert "$(PIP_INSTALL) --require-hashes --no-deps $(PINS:%=-r %)" in makefile
    assert "$(PIP_INSTALL) --no-deps --no-build-isolation -e ." in makefile
    pins = {"triton-cpu": ["local", "cpu"], "triton-cuda": ["local", "cuda12"], "frontend": ["frontend"]}
    for image, names in pins.items():
        [pinned, own] = [line for line in instructions(image) if "pip install" in line]
        assert pinned.endswith(f"--require-hashes --no-deps {' '.join(f'-r {name}.txt' for name in names)}")
        assert "--no-deps --no-build-isolation . " in own


@pytest.mark.parametrize("image", ["triton-gpu", "tensorrt-llm"])
def test_a_gpu_image_has_the_programs_of_the_start_script(image: str) -> None:
    text = "\n".join(instructions(image))
    assert re.search("install --yes --no-install-recommends .* openssh-client openssh-server ", text)
    assert "--shell /bin/bash" in text, "a rank is started by the shell of its user"


def test_the_gpu_images_differ_in_their_base_alone() -> None:
    def installed(image: str) -> list[str]:
        found = instructions(image)
        return found[found.index("WORKDIR /opt/conch") :]

    assert installed("tensorrt-llm") == installed("triton-gpu")
    assert f"ARG TENSORRT_LLM={default_values()['images']['tensorrtLlm']['tensorrtLlmVersion']}" in instructions(
        "tensorrt-llm"
    )


def test_the_image_of_tensorrt_llm_has_tritons_server_where_it_is_looked_for() -> None:
    """Beside numpy 2 the server of the wheel ends at the first text; TensorRT-LLM 1.3 requires numpy 2."""
    found = instructions("tensorrt-llm")
    tree = FULL_TRITON.parents[1]
    for part in ("bin", "lib", "backends/python"):
        assert f"COPY --from=triton {tree}/{part} {tree}/{part}" in found
    assert {"ARG TRITON=26.11-py3", "FROM nvcr.io/nvidia/tritonserver:${TRITON} AS triton"} <= set(found)
    [check] = [line for line in found if " ldd " in line]
    for file in ("lib/libtritonserver.so", "backends/python/libtriton_python.so"):
        assert f" {tree}/{file} " in check
    assert "nvidia-pytriton" not in "\n".join(found)


def make_images(folder: Path, *variables: str) -> tuple[int, list[str]]:
    """Run `make images` with doubles of docker and podman. Return its status and their command lines."""
    for name in ("docker", "podman"):
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/calls\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["make", "images", *variables], cwd=PROJECT, env={"PATH": path}, timeout=60, check=False)
    return done.returncode, (folder / "calls").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("registry", ["registry.example.com/llm", "registry.example.com:5000/"])
def test_make_images_pushes_the_images_that_the_chart_asks_for(registry: str, tmp_path: Path) -> None:
    tags = [f"{registry.rstrip('/')}/conch-{path.stem}:{metadata()['appVersion']}" for path in IMAGES]
    calls = []
    for path, tag in zip(IMAGES, tags, strict=True):
        calls += [f"docker build --file {path.relative_to(PROJECT)} --tag {tag} .", f"docker push {tag}"]
    assert make_images(tmp_path, f"REGISTRY={registry}", "PUSH=1") == (0, calls)

    (tmp_path / "calls").unlink()
    built = [f"podman build --file helm/images/frontend.Dockerfile --tag conch-frontend:{metadata()['appVersion']} ."]
    assert make_images(tmp_path, "IMAGES=frontend", "DOCKER=podman") == (0, built)

    values = with_gpu_model() | {"global": {"imageRegistry": registry}}
    newer = with_gpu_model(engine={"runtime": "tensorrt_llm", "backend": "pytorch"}, build={}, image="tensorrtLlm")
    values["models"] += [{"name": "demo"}, *({**model, "name": "b", "servedName": "b"} for model in newer["models"])]
    values["models"] += values_of("cuda")["models"][:1]
    assert {container["image"] for pod in pods(render(values)) for container in pod.containers} == set(tags)
