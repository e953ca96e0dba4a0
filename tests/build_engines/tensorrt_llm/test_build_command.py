"""The build command with the doubles of the tools: artifacts and errors."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from build_engines import artifact
from build_engines.__main__ import main
from build_engines.hub import HubRepository
from tests.build_engines.tensorrt_llm.builder import Builder
from tests.build_engines.tensorrt_llm.tiny_model import write_catalog
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A tiny model for two GPUs."""
    return Builder.make(tmp_path)


def assert_refused(builder: Builder, *extra: str, message: str, **environment: str) -> str:
    """Check that a build fails with a line, leaving no artifact; return its output."""
    result = builder.run(*extra, **environment)
    assert result.returncode == 1
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert message in re.sub(r"after \d+ s:", "after 0 s:", line)
    assert builder.artifacts() == []
    return result.stderr


# --- artifacts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen", "gemma", "deepseek_v2"])
def test_every_family_is_built_and_rendered(tmp_path: Path, family: str) -> None:
    builder = Builder.make(tmp_path, family)
    result = builder.run("--alias", "small")
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    manifest = artifact.verify(folder)
    assert (manifest.runtime, manifest.precision, manifest.context_window) == ("tensorrt_llm", "bf16", 1024)
    assert manifest.requires == {"tensorrt_llm": "1.2.1", "gpu_architecture": "sm90", "num_gpus": "2"}
    assert manifest.build["commands"][0].startswith("python3 TENSORRT_LLM/examples/models/")
    assert json.loads((folder / "engine" / "config.json").read_text()).keys() >= {"pretrained_config", "build_config"}
    config = (builder.state_dir / "repository" / f"tiny--{family}__engine" / "config.pbtxt").read_text()
    assert r"{\"tensorrt_llm\": \"1.2.1\", \"gpu_architecture\": \"sm90\", \"num_gpus\": \"2\"}" in config
    assert manifest.serving.aliases == ("small",)


def test_fp8_is_quantized_first(builder: Builder) -> None:
    result = builder.run("--precision", "fp8", "--calibration-dataset", "texts")
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    pretrained = json.loads((folder / "engine" / "config.json").read_text())["pretrained_config"]
    assert pretrained["quantization"] == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


def test_adapters_are_checked_and_copied(builder: Builder, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "formal", tensors_of(random_pairs(random_weights(), ("q_proj", "k_proj"))))
    result = builder.run("--adapter", f"org/formal={adapter}")
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    manifest = artifact.verify(folder)
    assert manifest.adapters == {"org/formal": "adapters/org--formal"}
    assert {path.name for path in (folder / "adapters" / "org--formal").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    build_config = json.loads((folder / "engine" / "config.json").read_text())["build_config"]
    assert (build_config["lora_target_modules"], build_config["max_lora_rank"]) == (["attn_q", "attn_k"], 4)
    assert (manifest.options["lora_modules"], manifest.options["lora_max_rank"]) == ("attn_q,attn_k", "4")
    assert "org/formal" in (builder.state_dir / "repository" / "tiny--llama" / "config.pbtxt").read_text()


def test_the_pytorch_backend_needs_no_tools(builder: Builder) -> None:
    result = builder.run("--backend", "pytorch", PATH="/nowhere")
    assert result.returncode == 1  # the kind of GPU is asked of nvidia-smi
    result = builder.run("--backend", "pytorch", "--gpu", "h100", PATH="/nowhere")
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    manifest = artifact.verify(folder)
    assert manifest.requires == {"num_gpus": "2"}
    weights = "model-00001-of-00002.safetensors"
    assert (folder / "checkpoint" / weights).read_bytes() == (builder.checkpoint / weights).read_bytes()
    assert (manifest.options["backend"], manifest.options["tp_size"]) == ("pytorch", "2")
    assert not (folder / "engine").exists()


def test_the_pytorch_backend_serves_a_checkpoint_in_fp8(builder: Builder) -> None:
    options = ("--backend", "pytorch", "--gpu", "h100", "--precision", "fp8")
    (builder.checkpoint / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    result = builder.run(*options)
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    assert artifact.verify(folder).precision == "fp8"
    assert (folder / "checkpoint" / "hf_quant_config.json").is_file()


def test_a_model_that_reads_images_keeps_its_input_processor(builder: Builder) -> None:
    numbers = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 64, "patch_size": 14, "merge_size": 2}
    write_catalog(builder.catalog, vision={**numbers, "max_positions": 512})
    (builder.checkpoint / "preprocessor_config.json").write_text("{}")
    result = builder.run("--backend", "pytorch", "--gpu", "h100")
    assert result.returncode == 0, result.stderr
    (folder,) = builder.artifacts()
    assert artifact.verify(folder).has_images
    assert (folder / "checkpoint" / "preprocessor_config.json").is_file()
    config = (builder.state_dir / "repository" / "tiny--llama" / "config.pbtxt").read_text()
    assert '\\"images\\"' in config


def test_verify_lists_its_checks(builder: Builder) -> None:
    builder.run()
    (folder,) = builder.artifacts()
    result = builder.command("verify", str(folder))
    assert (result.returncode, result.stdout.splitlines()[1:]) == (
        0,
        [
            "ok      digests of 6 files",
            "ok      TensorRT-LLM version: 1.2.1",
            "ok      GPU architecture: sm90",
            "ok      number of GPUs: 2",
        ],
    )


def test_verify_names_the_failed_check(builder: Builder) -> None:
    builder.run()
    (folder,) = builder.artifacts()
    engine = folder / "engine" / "rank1.engine"
    engine.write_bytes(engine.read_bytes().swapcase())
    result = builder.command("verify", str(folder), CONCH_DOUBLE_GPUS="NVIDIA A100-SXM4-80GB, 81920, 8.0")
    assert result.returncode == 1
    assert f"FAILED  digests of 6 files: {engine}: differs from its digest" in result.stdout
    assert "FAILED  GPU architecture: sm90: built for GPUs of architecture sm90, this machine has 1 x NVIDIA A100" in (
        result.stdout
    )
    assert result.stderr == f"error: {folder}: 3 of its checks failed\n"
    rendered = builder.command("render", str(folder), "--repository", str(folder.parent.parent / "other"))
    assert (rendered.returncode, rendered.stderr.startswith(f"error: {engine}: differs")) == (1, True)


# --- what it refuses before anything runs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """Runs the command in this process, which takes a tenth of the time."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def assert_refused(self, builder: Builder, *extra: str, message: str, **environment: str) -> None:
        """Check that a build fails with one line, leaving no artifact."""
        for name, value in builder.environment(**environment).items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.syspath_prepend(str(builder.state_dir.parent / "site"))
        assert main(builder.arguments(*extra)) == 1
        (line,) = self.capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line
        assert builder.artifacts() == []


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """This process."""
    return Here(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--gpu", "a100"], "is planned for 2 x A100 of 80.0 GB in each node, this machine has 2 x NVIDIA H100"),
        (["--gpus", "4"], "is planned for 4 x H100 of 80.0 GB in each node, this machine has 2 x NVIDIA H100"),
        (["--max-num-tokens", "0"], "--max-num-tokens 0: expected at least 1"),
        (["--max-num-tokens", "100000"], "--max-num-tokens 100000: the plan has memory for 8192 in one step"),
        (["--max-num-tokens", "127"], "--max-num-tokens 127: a step has a token of each sequence: expected at least"),
        (["--max-sequences", "129"], "max_sequences=129: tiny/llama is built for 128"),
        (["--workers", "0"], "--workers 0: expected at least 1"),
        (["--gguf", "x"], "--gguf: not with --runtime tensorrt_llm: use --checkpoint"),
        (["--mmproj", "x"], "--mmproj: not with --runtime tensorrt_llm: use --checkpoint"),
        (["--context-window", "5"], "--context-window: not with --runtime tensorrt_llm: use --max-seq-len"),
        (["--option", "tp_size=2"], "--option tp_size: follows from the build: use --tensor"),
        (["--option", "itl_ms=2"], "--option itl_ms: the runtime tensorrt_llm takes backend, block_reuse"),
        (["--option", "block_reuse=yes"], "option block_reuse=yes: must be true or false"),
        (["--option", "kv_cache_dtype=fp8"], "option kv_cache_dtype=fp8: only with backend=pytorch"),
        (["--calibration-dataset", "x"], "--calibration-dataset: nothing is calibrated here"),
        (
            ["--backend", "pytorch", "--precision", "fp8"],
            "the checkpoint is in 16-bit: expected a checkpoint in ModelOpt",
        ),
        (["--backend", "pytorch", "--keep-work"], "--keep-work: nothing is compiled with --backend pytorch"),
        (["--backend", "pytorch", "--workers", "2"], "--workers: nothing is compiled with --backend pytorch"),
        (["--tensorrt-llm-examples", "none"], "must be a clone of TensorRT-LLM's repository at tag v1.2.1"),
        (["--checkpoint", "none"], "--checkpoint none: no such folder, nor of the form OWNER/NAME@REVISION"),
        (["--alias", "tiny/llama"], "alias 'tiny/llama' of tiny/llama: model tiny/llama has the same name"),
    ],
)
def test_an_impossible_build_is_refused(builder: Builder, here: Here, extra: list[str], message: str) -> None:
    here.assert_refused(builder, *extra, message=message)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "TensorRT-LLM 1.2.0: builds are made for 1.2.1"),
        (["--option", "tp_size=2"], "--option tp_size: follows from the build"),
        (["--adapter", "formal=none"], "none/adapter_config.json: no such file"),
        (["--alias", "tiny/llama"], "alias 'tiny/llama' of tiny/llama: model tiny/llama has the same name"),
    ],
)
def test_an_impossible_build_downloads_nothing(tmp_path: Path, here: Here, extra: list[str], message: str) -> None:
    def download(*_: object) -> None:
        raise AssertionError("a download was begun")

    here.monkeypatch.setattr(HubRepository, "open", download)
    builder = Builder.make(tmp_path, version="1.2.0")
    here.assert_refused(builder, "--checkpoint", "owner/name@main", *extra, message=message)


def test_another_version_is_refused(tmp_path: Path, here: Here) -> None:
    message = "TensorRT-LLM 1.2.0: builds are made for 1.2.1, the last with engines: use the image tritonserver:"
    here.assert_refused(Builder.make(tmp_path, version="1.2.0"), message=message)


def test_a_release_without_engines_takes_the_pytorch_backend(tmp_path: Path) -> None:
    builder = Builder.make(tmp_path, version="1.3.0rc29")
    result = builder.run()
    assert result.returncode == 0, result.stderr
    assert "backend     pytorch, since TensorRT-LLM 1.3.0rc29 has no engines" in result.stderr
    assert artifact.verify(builder.artifacts()[0]).options["backend"] == "pytorch"


def test_engines_that_are_named_are_refused_by_a_release_without_them(tmp_path: Path, here: Here) -> None:
    message = "TensorRT-LLM 1.3.0rc29: builds are made for 1.2.1, the last with engines"
    here.assert_refused(Builder.make(tmp_path, version="1.3.0rc29"), "--backend", "engine", message=message)


def test_a_machine_without_a_gpu_is_refused(builder: Builder, here: Here) -> None:
    message = "none (CUDA_VISIBLE_DEVICES='' hides every GPU): name the one to plan for: --gpu h100|h200|b200|a100|l40s"
    here.assert_refused(builder, message=message, CUDA_VISIBLE_DEVICES="")


def test_only_visible_gpus_count(builder: Builder, here: Here) -> None:
    message = "is planned for 2 x H100 of 80.0 GB in each node, this machine has 1 x NVIDIA H100 80GB HBM3 of 85.5 GB"
    here.assert_refused(builder, message=message, CUDA_VISIBLE_DEVICES="1")


def test_a_smaller_gpu_of_the_same_name_is_refused(builder: Builder, here: Here) -> None:
    message = "is planned for 2 x H100 of 80.0 GB in each node, this machine has 2 x NVIDIA H100 NVL of 50.0 GB"
    gpus = "\n".join(["NVIDIA H100 NVL, 47684, 9.0"] * 2)
    here.assert_refused(builder, "--gpu", "h100", message=message, CONCH_DOUBLE_GPUS=gpus)


def test_a_file_that_was_cut_short_is_named(builder: Builder, here: Here) -> None:
    shard = builder.checkpoint / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    here.assert_refused(builder, message=f"{shard}: cut short, or no safetensors file")


def test_a_file_that_is_missing_is_named(builder: Builder, here: Here) -> None:
    (builder.checkpoint / "model-00002-of-00002.safetensors").unlink()
    here.assert_refused(builder, message="model-00002-of-00002.safetensors")


def test_a_checkpoint_of_another_model_is_refused(builder: Builder, here: Here) -> None:
    config = json.loads((builder.checkpoint / "config.json").read_text())
    (builder.checkpoint / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    here.assert_refused(builder, message="hidden_size=64: tiny/llama has 48: is this another model's checkpoint?")


# --- what the tools do wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("trtllm-build=cuda_out_of_memory", "engine failed (exit status 1) after 0 s: the GPU's memory ran out"),
        ("trtllm-build=killed", "engine failed (ended by signal 9) after 0 s: the machine's memory (RAM) ran out"),
        ("trtllm-build=architecture", "the GPU's architecture has no kernels for this"),
        ("convert_checkpoint.py=disk_full", "checkpoint failed (exit status 1) after 0 s: the disk is full"),
        ("convert_checkpoint.py=gated", "a gated repository: accept its licence on the hub, and set HF_TOKEN"),
        ("convert_checkpoint.py=unknown", "checkpoint failed (exit status 1) after 0 s: see the end of its log"),
        ("trtllm-build=empty", "engine: rank0.engine is empty, although trtllm-build had exit status 0; its log: "),
    ],
)
def test_a_tool_that_fails_is_explained(builder: Builder, fault: str, message: str) -> None:
    said = assert_refused(builder, message=message, CONCH_DOUBLE_FAULT=fault)
    if "empty" not in fault:
        assert f"complete log: {builder.work_dir}" in said
    if "unknown" in fault:
        assert "    RuntimeError: an unknown error" in said
    assert builder.run().returncode == 0


def test_a_tool_that_is_not_installed_is_named(builder: Builder, tmp_path: Path) -> None:
    for name in ("nvidia-smi", "python3"):
        (tmp_path / name).symlink_to(builder.environment()["PATH"].split(":")[name == "python3"] + f"/{name}")
    message = "engine: trtllm-build: no such program: is TensorRT-LLM 1.2.1 installed here?"
    assert_refused(builder, message=message, PATH=str(tmp_path))
