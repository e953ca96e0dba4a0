"""Repositories of several artifacts, and on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build_engines import artifact
from build_engines.__main__ import main
from build_engines.errors import ArtifactInvalid, BuildError
from build_engines.llama_cpp.device_trial import LayerMemory
from build_engines.render import ServeOptions, render, render_artifacts, write_repository
from build_engines.rendered import rendered_again
from build_engines.serving import Loading, Serving
from model_repository.contract.tensors import ARBITER, LOADERS
from model_repository.engine.runtime import EngineConfig
from model_repository.model_parameters import Load, ModelParameters
from model_repository.system.devices import Device, DeviceUse, NoDevices
from model_repository.system.llama_build import BuildsCollide, LlamaBuild
from tests.build_engines import test_render
from tests.build_engines.tensorrt_llm.builder import BIN, H100

MANIFEST = replace(test_render.MANIFEST, adapters={}, serving=Serving(), files={}, linked={})
OPTIONS = ServeOptions()
FILES = render(MANIFEST, Path("/artifacts/demo"), OPTIONS, "1.2.3")

# --- of artifacts -----------------------------------------------------------------------------------------------------


def write_artifact(folder: Path, model_id: str, *, aliases: Iterable[str] = (), adapters: Iterable[str] = ()) -> Path:
    folder.mkdir()
    (folder / "weights").touch()
    paths = {name: "weights" for name in adapters}
    serving = Serving.of(aliases, {})
    artifact.seal(folder, replace(MANIFEST, model_id=model_id, adapters=paths, serving=serving))
    return folder


def test_an_artifact_is_served_under_further_names(tmp_path: Path) -> None:
    artifact_dir = write_artifact(tmp_path / "one", "one", aliases=["first"])
    repository = tmp_path / "repository"
    command = ["render", str(artifact_dir), "--repository", str(repository)]
    assert main([*command, "--alias", "second", "--alias", "first"]) == 0
    config = (repository / "one" / "config.pbtxt").read_text(encoding="utf-8")
    assert test_render.parameters_in(config).aliases == ("first", "second")


def test_two_artifacts_of_one_model_are_refused(tmp_path: Path) -> None:
    """The second one silently took the first one's place."""
    folders = [write_artifact(tmp_path / name, "same") for name in ("one", "two")]
    with pytest.raises(BuildError, match=r"model same \(.*/two\): model same \(.*/one\) has the same name"):
        render_artifacts(dict.fromkeys(folders, OPTIONS))


def test_models_keep_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    folders = [write_artifact(tmp_path / name, name) for name in ("b", "a")]
    files = render_artifacts(dict.fromkeys(folders, OPTIONS))
    assert [test_render.parameters_in(files[f"{name}/config.pbtxt"]).position for name in ("b", "a")] == [0, 1]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"aliases": ["x"]}, {"aliases": ["x"]}, r"alias 'x' of org/b \(.*/two\): alias 'x' of org/a \(.*/one\) has"),
        ({"aliases": ["org/b"]}, {}, r"model org/b \(.*/two\): alias 'org/b' of org/a \(.*/one\) has"),
        ({"adapters": ["x"]}, {"aliases": ["x"]}, r"alias 'x' of org/b \(.*/two\): adapter x of org/a \(.*/one\) has"),
        ({}, {"adapters": ["org/a"]}, r"adapter org/a of org/b \(.*/two\): model org/a \(.*/one\) has"),
    ],
)
def test_a_name_that_means_two_things_is_refused(
    first: dict[str, list[str]], second: dict[str, list[str]], message: str, tmp_path: Path
) -> None:
    folders = [
        write_artifact(tmp_path / "one", "org/a", **first),
        write_artifact(tmp_path / "two", "org/b", **second),
    ]
    with pytest.raises(BuildError, match=message):
        render_artifacts(dict.fromkeys(folders, OPTIONS))


def layer_memory(name: str, config: EngineConfig, layer_bytes: int = 10**9) -> LayerMemory:
    """Return the memory of any model: it has two layers."""
    num = min(config.gpu_layers, 2)
    names = ("CPU",) * (2 - num) + ("CUDA0",) * num
    return LayerMemory(devices=names, weight_bytes=(layer_bytes,) * 2, cache_bytes=(0, 0), buffer_bytes={"CPU": 5})


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """The devices of the machine, on which any model has two layers of 1 GB."""
    devices = [Device(name="CUDA0", description="NVIDIA A", free_bytes=8 * 10**9, total_bytes=10 * 10**9)]
    monkeypatch.setattr("build_engines.render.read_devices", lambda: devices)
    monkeypatch.setattr("build_engines.render.layer_memory", layer_memory)
    return devices


def on_device(artifact_dir: Path, **options: Any) -> ModelParameters:
    files = render_artifacts({artifact_dir: ServeOptions(**options)})
    return test_render.parameters_in(files["one/config.pbtxt"])


def test_layers_on_devices_are_rendered_and_change_the_fingerprint(
    cards: list[Device], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact_dir = write_artifact(tmp_path / "one", "one")
    with caplog.at_level(logging.INFO):
        whole = on_device(artifact_dir)
    assert "layers      one: all 2 layers on CUDA0 (NVIDIA A): 2.0 of 10.0 GB" in caplog.messages
    assert whole.gpu_layers == 2
    assert whole.devices["CUDA0"] == DeviceUse(
        description="NVIDIA A", used_bytes=2 * 10**9, total_bytes=10**10, room_bytes=int(0.9 * 8 * 10**9)
    )
    part, none = on_device(artifact_dir, gpu_layers="1"), on_device(artifact_dir, gpu_layers="0")
    assert (part.gpu_layers, part.wanted_layers) == (1, "1")
    assert (none.gpu_layers, none.devices) == (0, {})
    cards[0] = replace(cards[0], description="NVIDIA B")
    other = on_device(artifact_dir)
    assert len({each.fingerprint for each in (whole, part, none, other)}) == 4
    cards.clear()
    assert on_device(artifact_dir) == replace(none, wanted_layers="auto")


def test_a_repository_is_rendered_again_with_the_options_for_devices(cards: list[Device], tmp_path: Path) -> None:
    artifact_dir = write_artifact(tmp_path / "one", "one")
    options = ServeOptions(gpu_layers="1", devices=("CUDA0",))
    files = render_artifacts({artifact_dir: options})
    write_repository(files, tmp_path / "models")
    assert rendered_again(tmp_path / "models") == files


def test_a_plan_that_a_running_server_makes_smaller_is_named(
    cards: list[Device], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory is not free. The layers moved to the cores without a word."""
    write_repository(render_artifacts({write_artifact(tmp_path / "one", "one"): ServeOptions()}), tmp_path / "models")
    rendered_again(tmp_path / "models")
    rule = "devices     one: less of CUDA0 is free than before: stop a server that computes on it, and render again"
    assert rule not in caplog.messages
    cards[0] = replace(cards[0], free_bytes=10**9)
    rendered_again(tmp_path / "models")
    assert rule in caplog.messages


def test_a_plan_that_a_new_release_makes_smaller_names_no_server(
    cards: list[Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_repository(render_artifacts({write_artifact(tmp_path / "one", "one"): ServeOptions()}), tmp_path / "models")
    monkeypatch.setattr("build_engines.render.layer_memory", partial(layer_memory, layer_bytes=5 * 10**9))
    files = rendered_again(tmp_path / "models")
    assert test_render.parameters_in(files["one/config.pbtxt"]).gpu_layers == 1
    assert "less of" not in caplog.text


def test_without_a_driver_the_cores_compute_unless_devices_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_devices() -> list[Device]:
        raise NoDevices("cyllama-vulkan: no driver")

    monkeypatch.setattr("build_engines.render.read_devices", read_devices)
    artifact_dir = write_artifact(tmp_path / "one", "one")
    assert on_device(artifact_dir).gpu_layers == 0
    assert "warning: cyllama-vulkan: no driver: the cores compute all layers" in caplog.messages
    caplog.clear()
    wanted: list[dict[str, Any]] = [{"gpu_layers": "all"}, {"devices": ("Vulkan0",)}]
    for options in wanted:
        with pytest.raises(BuildError, match=r"^cyllama-vulkan: no driver$"):
            on_device(artifact_dir, **options)
    assert not caplog.messages


def test_a_named_device_without_any_is_refused_without_a_word_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said that the cores compute all layers, and then the error came."""
    monkeypatch.setattr("build_engines.render.read_devices", list)
    monkeypatch.setattr("build_engines.render.installed_build", lambda: LlamaBuild("cyllama-cuda12", "1"))
    with pytest.raises(BuildError, match=r"^--device CUDA0: no device of CUDA is found"):
        on_device(write_artifact(tmp_path / "one", "one"), devices=("CUDA0",))
    assert not caplog.messages


def test_a_model_with_adapters_stays_on_the_cores(cards: list[Device], tmp_path: Path) -> None:
    artifact_dir = write_artifact(tmp_path / "one", "one")
    assert on_device(artifact_dir, adapter_root=tmp_path).gpu_layers == 0
    with pytest.raises(BuildError, match=r"^one: --gpu-layers, --device: a model with adapters stays on the cores"):
        on_device(artifact_dir, adapter_root=tmp_path, gpu_layers="all")


def test_a_build_for_cores_alone_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.render.installed_build", lambda: LlamaBuild("cyllama", "1"))
    monkeypatch.setattr("model_repository.system.devices.installed_build", lambda: LlamaBuild("cyllama", "1"))
    monkeypatch.delattr("subprocess.run")
    artifact_dir = write_artifact(tmp_path / "one", "one")
    assert on_device(artifact_dir).gpu_layers == 0
    with pytest.raises(BuildError, match=r"^--gpu-layers all: this llama\.cpp computes on the cores alone"):
        on_device(artifact_dir, gpu_layers="all")


def test_two_builds_of_llama_cpp_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed_build() -> None:
        raise BuildsCollide("cyllama and cyllama-vulkan are installed")

    monkeypatch.setattr("build_engines.render.installed_build", installed_build)
    with pytest.raises(BuildsCollide, match="cyllama and cyllama-vulkan are installed"):
        on_device(write_artifact(tmp_path / "one", "one"))


def write_gpu_artifact(folder: Path, model_id: str, num_gpus: int) -> Path:
    folder.mkdir()
    artifact.seal(folder, replace(MANIFEST, model_id=model_id, requires={"num_gpus": str(num_gpus)}))
    return folder


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        (Loading(load=Load.DEMAND), Loading(load=Load.DEMAND), True),
        (Loading(), Loading(load=Load.DEMAND), True),
        (Loading(), Loading(), False),
        (Loading(is_pinned=True), Loading(load=Load.DEMAND), False),
    ],
)
def test_models_on_demand_may_have_the_same_gpus(
    first: Loading, second: Loading, is_shared: bool, tmp_path: Path
) -> None:
    one, two = write_gpu_artifact(tmp_path / "one", "one", 2), write_gpu_artifact(tmp_path / "two", "two", 1)
    options = {one: ServeOptions(loading=first), two: ServeOptions(loading=second)}
    placements: list[dict[Path, list[tuple[int, ...]]]] = [{one: [(0, 1)], two: [(1,)]}, {}]
    for gpus in placements:
        with contextlib.nullcontext() if is_shared else pytest.raises(BuildError, match=r"two: GPU 1 is|one: 2 models"):
            render_artifacts(options, gpus)
    with pytest.raises(BuildError, match="one: GPU 1 is one's already"):
        render_artifacts(options, {one: [(0, 1), (1, 2)], two: [(3,)]})


def test_each_model_has_its_own_gpus(tmp_path: Path) -> None:
    one, two = write_gpu_artifact(tmp_path / "one", "one", 2), write_gpu_artifact(tmp_path / "two", "two", 1)
    files = render_artifacts({one: OPTIONS, two: OPTIONS}, {one: [(0, 1)], two: [(2,)]})
    assert test_render.parameters_in(files["one__engine/config.pbtxt"]).gpus == (0, 1)
    assert test_render.parameters_in(files["two__engine/config.pbtxt"]).gpus == (2,)
    refused: list[tuple[dict[Path, list[tuple[int, ...]]], str]] = [
        ({one: [(0, 1)], two: [(1,)]}, "two: GPU 1 is one's already"),
        ({one: [(0, 1), (1, 2)], two: [(3,)]}, "one: GPU 1 is one's already"),
        ({one: [(0, 1)]}, "two: 2 models need GPUs: name those of each, as ARTIFACT:0,1"),
        ({one: [(0,)], two: [(1,)]}, "one: GPUs 0: the model needs 2 different ones"),
        ({one: [(0, 1), (2,)], two: [(3,)]}, "one: GPUs 2: the model needs 2 different ones"),
        ({one: [(0, 0)], two: [(1,)]}, "one: GPUs 0,0: the model needs 2 different ones"),
    ]
    for gpus, message in refused:
        with pytest.raises(BuildError, match=message):
            render_artifacts({one: OPTIONS, two: OPTIONS}, gpus)


def replicas_in(repository: Path) -> dict[str, tuple[int, ...]]:
    """Return the GPUs of each engine in a repository, by its ensemble."""
    configs = {path.parent.name: path.read_text() for path in repository.glob("*/config.pbtxt")}
    configs = {name: text for name, text in configs.items() if name not in (ARBITER, *LOADERS)}
    found = {name: test_render.parameters_in(config) for name, config in configs.items()}
    assert {name.partition("__")[0] for name in found} == {parameters.ensemble for parameters in found.values()}
    return {parameters.ensemble: parameters.gpus for parameters in found.values()}


@pytest.mark.parametrize("words", [["{}:0,1", "{}:2,3", "{}:7,4"], ["{}", "--replicas", "3"]])
def test_replicas_have_a_model_id_in_common_and_gpus_of_their_own(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("CONCH_DOUBLE_GPUS", "\n".join([H100] * 8))
    folder, repository = write_gpu_artifact(tmp_path / "one", "org/one", 2), tmp_path / "repository"
    arguments = [word.format(folder) for word in words]
    assert main(["render", *arguments, "--repository", str(repository), "--alias", "brief"]) == 0
    last = (7, 4) if "{}" in words[1] else (4, 5)
    assert replicas_in(repository) == {"org--one": (0, 1), "org--one@2": (2, 3), "org--one@3": last}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["{}", "--replicas", "5"],
            "org/one: --replicas 5: each takes 2 GPUs, so 10 in all, and this machine has 8: at",
        ),
        (
            ["{}:0,1", "--replicas", "2"],
            "--replicas 2: {}: not with numbers of GPUs: name it once for each replica, or",
        ),
        (["{}:0,1", "{}"], "{}: named twice: replicas need their GPUs, as ARTIFACT:0,1 ARTIFACT:2,3"),
        (["{}", "{}:0,1"], "{}: named twice: replicas need their GPUs, as ARTIFACT:0,1 ARTIFACT:2,3"),
        (["{}", "--replicas", "0"], "replicas=0: must be at least 1"),
    ],
)
def test_replicas_that_the_machine_has_no_gpus_for_or_that_contradict_are_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("CONCH_DOUBLE_GPUS", "\n".join([H100] * 8))
    folder = write_gpu_artifact(tmp_path / "one", "org/one", 2)
    arguments = [word.format(folder) for word in words]
    assert main(["render", *arguments, "--repository", str(tmp_path / "repository")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message.format(folder)}")


def test_a_model_of_several_nodes_has_no_replicas(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    manifest = replace(MANIFEST, requires={"num_gpus": "8"}, options={"tp_size": "8", "pp_size": "2"})
    artifact.seal(tmp_path / "one", manifest)
    with pytest.raises(BuildError, match="--replicas 2: org/demo takes 2 nodes, and replicas share one"):
        render_artifacts({tmp_path / "one": dataclasses.replace(OPTIONS, replicas=2)})


def test_replicas_on_a_cpu_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.render.num_physical_cores", lambda: 8)
    folder = write_artifact(tmp_path / "one", "one")
    for replicas, num_threads, expected in ((1, 0, 0), (3, 0, 2), (9, 0, 1), (3, 8, 8)):
        options = dataclasses.replace(OPTIONS, replicas=replicas, num_threads=num_threads)
        files = render_artifacts({folder: options})
        configs = [content for name, content in files.items() if name.endswith("__engine/config.pbtxt")]
        found = [test_render.parameters_in(config) for config in configs]
        assert [each.num_threads for each in found] == [expected] * replicas
        assert len({each.fingerprint for each in found}) == 1


def test_a_damaged_artifact_is_refused(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path / "one", "one")
    (folder / "weights").write_text("changed")
    with pytest.raises(ArtifactInvalid, match="weights: differs"):
        render_artifacts({folder: OPTIONS})


# --- on disk ----------------------------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of each file."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def test_a_repository_is_written_completely(tmp_path: Path) -> None:
    write_repository(FILES, tmp_path / "state" / "repository")
    written = {name: (tmp_path / "state" / "repository" / name).read_text() for name in FILES}
    assert written == FILES
    assert set(snapshot(tmp_path / "state" / "repository")) == set(FILES)
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"repository", ".repository.lock"}


def test_a_repository_without_changes_is_not_touched(tmp_path: Path) -> None:
    write_repository(FILES, tmp_path / "repository")
    cache = tmp_path / "repository" / "org--demo__engine" / "1" / "__pycache__"
    cache.mkdir()  # as a running server leaves it
    (cache / "model.cpython-312.pyc").touch()
    before = snapshot(tmp_path / "repository")
    write_repository(FILES, tmp_path / "repository")
    assert snapshot(tmp_path / "repository") == before


def test_a_model_that_is_not_served_any_more_is_gone(tmp_path: Path) -> None:
    other = render(replace(MANIFEST, model_id="b"), Path("/b"), OPTIONS, "1.2.3")
    write_repository(FILES | other, tmp_path / "repository")
    write_repository(other, tmp_path / "repository")
    assert set(snapshot(tmp_path / "repository")) == set(other)


def test_a_folder_without_models_is_not_replaced(tmp_path: Path) -> None:
    """It was replaced, with everything in it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").touch()
    with pytest.raises(BuildError, match=r"home: holds thesis\.txt, which is not a rendered model"):
        write_repository(FILES, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.txt"]
