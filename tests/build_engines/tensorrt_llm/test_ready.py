"""What `serve NAME` and `pull NAME` take on GPUs: nothing is compiled if there is another way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines import artifact
from build_engines.commands import build_tensorrt_llm
from tests.build_engines.tensorrt_llm.builder import H100, Builder
from tests.build_engines.tensorrt_llm.conftest import Here

B200 = "NVIDIA B200, 183359, 10.0"
READY = {"fp8": "ready/FP8", "nvfp4": "ready/NVFP4"}


def change(builder: Builder, **fields: Any) -> None:
    """Change the entry of the catalog."""
    document = yaml.safe_load(builder.catalog.read_text())
    document["models"]["tiny/llama"] |= fields
    builder.catalog.write_text(yaml.safe_dump(document))


@pytest.fixture
def hub(builder: Builder, here: Here, tmp_path: Path) -> list[str]:
    """The checkpoints that are asked for, each in the format of its name."""
    asked: list[str] = []

    def checkpoint_folder(given: str, *_: object, **__: object) -> tuple[Path, str]:
        asked.append(given)
        algorithm = given.partition("@")[0].rpartition("/")[2]
        folder = tmp_path / "hub" / algorithm
        shutil.copytree(builder.checkpoint, folder, dirs_exist_ok=True)
        if algorithm in ("FP8", "NVFP4"):
            (folder / "hf_quant_config.json").write_text(f'{{"quantization": {{"quant_algo": "{algorithm}"}}}}')
        return folder, "a commit"

    here.monkeypatch.setattr(build_tensorrt_llm, "checkpoint_folder", checkpoint_folder)
    return asked


def served(builder: Builder, here: Here, *words: str, model: str = "tiny/llama", **environment: str) -> Path:
    """Build as `serve` does, and return the artifact."""
    places = ["--catalog", str(builder.catalog), "--home", str(builder.home)]
    arguments = ["build", "--ready", model, "--runtime", "tensorrt_llm", *places, *words]
    status, out, err = here.command(builder, *arguments, **environment)
    assert status == 0, err
    [line] = [line for line in out.splitlines() if line.startswith("artifact ")]
    return Path(line.split(maxsplit=1)[1])


@pytest.mark.parametrize(
    ("ready", "gpu", "words", "checkpoint"),
    [
        ({}, H100, [], "tiny/llama"),
        (READY, H100, [], "ready/FP8"),
        (READY, H100, ["--precision", "bf16"], "tiny/llama"),
        (READY, B200, [], "ready/FP8"),
        (READY, B200, ["--precision", "nvfp4"], "ready/NVFP4"),
        ({"nvfp4": "ready/NVFP4"}, H100, [], "tiny/llama"),
        ({"nvfp4": "ready/NVFP4"}, B200, [], "ready/NVFP4"),
    ],
)
def test_a_name_takes_the_pytorch_backend_and_the_ready_checkpoint_that_the_gpu_can_run(
    builder: Builder, here: Here, hub: list[str], ready: dict[str, str], gpu: str, words: list[str], checkpoint: str
) -> None:
    change(builder, ready_checkpoints=ready)
    manifest = artifact.verify(served(builder, here, *words, CONCH_DOUBLE_GPUS=gpu))
    assert hub == [f"{checkpoint}@main"]
    assert manifest.options["backend"] == "pytorch"
    assert manifest.precision == {"FP8": "fp8", "NVFP4": "nvfp4"}.get(checkpoint.rpartition("/")[2], "bf16")


def test_a_precision_without_a_ready_checkpoint_is_refused_before_the_download(
    builder: Builder, here: Here, hub: list[str]
) -> None:
    words = ["build", "--ready", "tiny/llama", "--catalog", str(builder.catalog), "--home", str(builder.home)]
    status, _, err = here.command(builder, *words, "--precision", "fp8")
    assert (status, hub) == (1, [])
    assert (
        "--precision fp8: the catalog has no ready checkpoint of tiny/llama in fp8: name one with --checkpoint" in err
    )


def test_a_named_checkpoint_is_not_replaced(builder: Builder, here: Here, hub: list[str]) -> None:
    change(builder, ready_checkpoints=READY)
    manifest = artifact.verify(served(builder, here, "--checkpoint", "my/own@main"))
    assert (hub, manifest.precision) == (["my/own@main"], "bf16")


def test_the_build_command_compiles_an_engine_of_the_16_bit_checkpoint(
    builder: Builder, here: Here, hub: list[str]
) -> None:
    change(builder, ready_checkpoints=READY)
    words = [word for word in builder.arguments("--precision", "fp8") if word != str(builder.checkpoint)]
    words.remove("--checkpoint")
    status, _, err = here.command(builder, *words)
    assert status == 0, err
    [folder] = builder.artifacts()
    assert (hub, artifact.verify(folder).options["backend"]) == (["tiny/llama@main"], "engine")


def test_a_model_that_only_engines_have_is_compiled(builder: Builder, here: Here, hub: list[str]) -> None:
    here.monkeypatch.setattr("build_engines.model_entry.releases_with", lambda class_name: ())
    change(builder, ready_checkpoints=READY)
    manifest = artifact.verify(served(builder, here, *builder.arguments()[-2:]))  # --tensorrt-llm-examples
    assert (hub, manifest.options["backend"], manifest.precision) == (["tiny/llama@main"], "engine", "bf16")


def test_an_engine_of_the_store_is_served_under_further_names(builder: Builder, here: Here, hub: list[str]) -> None:
    change(builder, ready_checkpoints=READY, aliases=["small"])
    engine = here.build(builder)
    assert served(builder, here, "--alias", "mine", model="small") == engine
    assert artifact.verify(engine).serving.aliases == ("small", "mine")
    assert hub == [str(builder.checkpoint)], "only the engine's build has a checkpoint"


def test_a_folder_is_built_again_though_the_store_has_a_model_of_its_name(
    builder: Builder, here: Here, hub: list[str]
) -> None:
    first = served(builder, here, model=str(builder.checkpoint))
    config = builder.checkpoint / "config.json"
    config.write_text(config.read_text().replace("{", '{"_name_or_path": "trained on", ', 1))
    assert served(builder, here, model=str(builder.checkpoint)) != first


def test_a_model_under_a_name_of_ones_own_is_served_by_that_name(builder: Builder, here: Here, hub: list[str]) -> None:
    built = served(builder, here, "--checkpoint", str(builder.checkpoint), model="mine")
    assert served(builder, here, model="mine") == built


@pytest.mark.parametrize(
    "words",
    [["--precision", "fp8"], ["--backend", "pytorch"], ["--context-window", "512"], ["--max-batch-size", "4"]],
)
def test_options_of_another_artifact_build_it(builder: Builder, here: Here, hub: list[str], words: list[str]) -> None:
    change(builder, ready_checkpoints=READY)
    engine = here.build(builder)
    assert served(builder, here, *words) != engine


def test_an_engine_for_another_gpu_is_not_served(builder: Builder, here: Here, hub: list[str]) -> None:
    engine = here.build(builder)
    assert served(builder, here, CONCH_DOUBLE_GPUS=B200) != engine


def test_the_newest_artifact_is_served(builder: Builder, here: Here, hub: list[str]) -> None:
    clock = iter(range(1000, 2000))
    here.monkeypatch.setattr("build_engines.build.time.time", lambda: next(clock))
    served(builder, here, "--context-window", "256")
    newest = served(builder, here, "--context-window", "512")
    assert artifact.verify(newest).context_window == 512
    assert served(builder, here) == newest


def test_too_few_gpus_are_refused_before_the_download(builder: Builder, here: Here, hub: list[str]) -> None:
    change(builder, presets={"h100": {"bf16": {"tp_size": 2}}})
    words = ["build", "--ready", "tiny/llama", "--catalog", str(builder.catalog), "--home", str(builder.home)]
    status, _, err = here.command(builder, *words, CONCH_DOUBLE_GPUS=H100)
    assert (status, hub) == (1, [])
    assert "tiny/llama is planned for 2 x H100 of 80.0 GB in each node, this machine has 1 x NVIDIA H100" in err


def test_the_two_names_of_the_context_window_are_not_given_together(builder: Builder, here: Here) -> None:
    said = here.refusal(builder, "--context-window", "512", "--max-seq-len", "256")
    assert "--context-window 512: --max-seq-len is the same: write one" in said
