"""The build command with the doubles of the tools: artifacts and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from build_engines import artifact
from build_engines.hub import HubRepository
from tests.build_engines.tensorrt_llm.builder import Builder
from tests.build_engines.tensorrt_llm.conftest import Here
from tests.build_engines.tensorrt_llm.tiny_model import write_catalog, write_tiny_checkpoint
from tests.build_engines.test_render import parameters_in
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights

# --- artifacts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen", "gemma", "deepseek_v2"])
def test_every_family_is_built_and_rendered(tmp_path: Path, here: Here, family: str) -> None:
    builder = Builder.make(tmp_path, family)
    folder = here.build(builder, "--alias", "small")
    manifest = artifact.verify(folder)
    assert (manifest.runtime, manifest.precision, manifest.context_window) == ("tensorrt_llm", "bf16", 1024)
    assert manifest.requires == {"tensorrt_llm": "1.2.1", "gpu_architecture": "sm90", "num_gpus": "2"}
    assert manifest.build["commands"][0].startswith("python3 TENSORRT_LLM/examples/models/")
    assert json.loads((folder / "engine" / "config.json").read_text()).keys() >= {"pretrained_config", "build_config"}
    config = (builder.home / "repository" / f"tiny--{family}__engine" / "config.pbtxt").read_text()
    assert parameters_in(config).requires == manifest.requires
    assert manifest.serving.aliases == ("small",)


def test_fp8_is_quantized_first(builder: Builder, here: Here) -> None:
    folder = here.build(builder, "--precision", "fp8", "--calibration-dataset", "texts")
    pretrained = json.loads((folder / "engine" / "config.json").read_text())["pretrained_config"]
    assert pretrained["quantization"] == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


def test_adapters_are_checked_and_copied(builder: Builder, here: Here, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "formal", tensors_of(random_pairs(random_weights(), ("q_proj", "k_proj"))))
    folder = here.build(builder, "--adapter", f"org/formal={adapter}")
    manifest = artifact.verify(folder)
    assert manifest.adapters == {"org/formal": "adapters/org--formal"}
    assert {path.name for path in (folder / "adapters" / "org--formal").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    build_config = json.loads((folder / "engine" / "config.json").read_text())["build_config"]
    assert (build_config["lora_target_modules"], build_config["max_lora_rank"]) == (["attn_q", "attn_k"], 4)
    assert (manifest.options["lora_modules"], manifest.options["lora_max_rank"]) == ("attn_q,attn_k", "4")


PYTORCH = ("--backend", "pytorch", "--gpu", "h100")


def test_the_pytorch_backend_needs_no_tools(builder: Builder, here: Here) -> None:
    folder = here.build(builder, *PYTORCH, PATH="/nowhere")
    manifest = artifact.verify(folder)
    assert manifest.requires == {"num_gpus": "2"}
    weights = "model-00001-of-00002.safetensors"
    assert (folder / "checkpoint" / weights).read_bytes() == (builder.checkpoint / weights).read_bytes()
    assert (manifest.options["backend"], manifest.options["tp_size"]) == ("pytorch", "2")
    assert not (folder / "engine").exists()


def test_the_options_of_the_catalog_hold_unless_the_user_says_otherwise(builder: Builder, here: Here) -> None:
    models = yaml.safe_load(builder.catalog.read_text(encoding="utf-8"))
    models["models"]["tiny/llama"]["runtime_options"] = {"chunked_prefill": "false", "block_reuse": "false"}
    builder.catalog.write_text(yaml.safe_dump(models), encoding="utf-8")
    options = artifact.verify(here.build(builder, *PYTORCH, "--option", "block_reuse=true")).options
    assert (options["chunked_prefill"], options["block_reuse"]) == ("false", "true")


LATENT = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_size": 16, "qk_rope_head_size": 8, "v_head_size": 16}


@pytest.mark.parametrize(("gpu", "expected"), [("a100", "false"), ("h100", None)])
def test_latent_attention_has_chunks_where_its_release_has_them(
    gpu: str, expected: str | None, builder: Builder, here: Here
) -> None:
    write_catalog(builder.catalog, latent_attention=LATENT)
    folder = here.build(builder, "--backend", "pytorch", "--gpu", gpu)
    assert artifact.verify(folder).options.get("chunked_prefill") == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--option", "chunked_prefill=true"),
            "--option chunked_prefill=true: TensorRT-LLM 1.2.1 on A100 (sm80) has no chunks for latent attention",
        ),
        (
            ("--max-num-tokens", "512"),
            "option chunked_prefill=false: a step takes 512 tokens, and a prompt may have 1023: "
            "use a smaller --max-seq-len or a larger --max-num-tokens",
        ),
    ],
)
def test_a_prompt_must_fit_a_step_where_latent_attention_has_no_chunks(
    options: tuple[str, ...], message: str, builder: Builder, here: Here
) -> None:
    write_catalog(builder.catalog, latent_attention=LATENT)
    arguments = ("--backend", "pytorch", "--gpu", "a100", *options)
    assert here.refusal(builder, *arguments) == f"error: {message}"


def test_the_pytorch_backend_serves_a_checkpoint_in_fp8(builder: Builder, here: Here) -> None:
    (builder.checkpoint / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    folder = here.build(builder, *PYTORCH, "--precision", "fp8")
    assert artifact.verify(folder).precision == "fp8"
    assert (folder / "checkpoint" / "hf_quant_config.json").is_file()


def test_a_model_that_reads_images_keeps_its_input_processor(builder: Builder, here: Here) -> None:
    numbers = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 64, "patch_size": 14, "merge_size": 2}
    write_catalog(builder.catalog, vision={**numbers, "max_positions": 512})
    (builder.checkpoint / "preprocessor_config.json").write_text("{}")
    folder = here.build(builder, *PYTORCH)
    assert artifact.verify(folder).has_images
    assert (folder / "checkpoint" / "preprocessor_config.json").is_file()


def test_a_release_without_engines_takes_the_pytorch_backend(
    tmp_path: Path, here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    folder = here.build(Builder.make(tmp_path, version="1.3.0rc29"))
    assert "backend     pytorch, since TensorRT-LLM 1.3.0rc29 has no engines" in caplog.text
    assert artifact.verify(folder).options["backend"] == "pytorch"


def of_the_user(builder: Builder, folder: Path, *extra: str) -> tuple[str, ...]:
    """Return the command line for a checkpoint outside the catalog."""
    return ("build", str(folder), "--runtime", "tensorrt_llm", "--home", str(builder.home), *extra)


def test_a_checkpoint_outside_the_catalog_is_for_the_pytorch_backend(builder: Builder, here: Here) -> None:
    folder = write_tiny_checkpoint(builder.home.parent / "my-model", architectures=["Qwen3ForCausalLM"])
    hermes = "{{ tools }}{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}"
    hermes += "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(hermes)
    options = ("--option", "trust_remote_code=true", "--gpus", "2")
    status, _, err = here.command(builder, *of_the_user(builder, folder, *options))
    assert status == 0, err
    [artifact_dir] = builder.artifacts()
    manifest = artifact.verify(artifact_dir)
    assert (manifest.model_id, manifest.precision, manifest.context_window) == ("my-model", "bf16", 1024)
    assert (manifest.tool_call_format, manifest.requires) == ("hermes", {"num_gpus": "2"})
    assert (manifest.options["backend"], manifest.options["trust_remote_code"]) == ("pytorch", "true")
    assert (artifact_dir / "checkpoint" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("class_name", "extra", "message"),
    [
        ("Glm4MoeForCausalLM", (), "TensorRT-LLM 1.2.1 lists no Glm4MoeForCausalLM: 1.3.0rc29 has it, or `conch build"),
        ("Lfm2ForCausalLM", (), "TensorRT-LLM 1.2.1 and 1.3.0rc29 lists no Lfm2ForCausalLM: `conch build my-model"),
        ("Qwen3ForCausalLM", ("--backend", "engine"), "backend has no Qwen3ForCausalLM: use --backend pytorch"),
        ("Qwen3ForCausalLM", ("--precision", "fp8"), "--precision fp8: my-model is built in bf16"),
    ],
)
def test_a_checkpoint_that_is_not_served_is_refused(
    class_name: str, extra: tuple[str, ...], message: str, builder: Builder, here: Here
) -> None:
    folder = write_tiny_checkpoint(builder.home.parent / "my-model", architectures=[class_name])
    status, _, err = here.command(builder, *of_the_user(builder, folder, *extra))
    assert (status, builder.artifacts()) == (1, [])
    assert message in err


def test_verify_lists_its_checks_and_names_those_that_fail(builder: Builder, here: Here) -> None:
    folder = here.build(builder)
    status, out, _ = here.command(builder, "verify", str(folder))
    assert (status, out.splitlines()[1:]) == (
        0,
        [
            "ok      digests of 6 files",
            "ok      GPU architecture: sm90",
            "ok      number of GPUs: 2",
            "ok      TensorRT-LLM version: 1.2.1",
        ],
    )
    engine = folder / "engine" / "rank1.engine"
    engine.write_bytes(engine.read_bytes().swapcase())
    gpus = "NVIDIA A100-SXM4-80GB, 81920, 8.0"
    status, out, err = here.command(builder, "verify", str(folder), CONCH_DOUBLE_GPUS=gpus)
    assert (status, err) == (1, f"error: {folder}: 3 of its checks failed\n")
    assert f"FAILED  digests of 6 files: {engine}: differs from its digest" in out
    rule = "built for GPUs of architecture sm90, this machine has 1 x NVIDIA A100"
    assert f"FAILED  GPU architecture: sm90: {rule}" in out


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--gpu", "a100"], "is planned for 2 x A100 of 80.0 GB in each node, this machine has 2 x NVIDIA H100"),
        (
            ["--replicas", "2"],
            "tiny/llama: --replicas 2: each takes 2 GPUs, so 4 in all, and this machine has 2: at most 1",
        ),
        (["--max-num-tokens", "0"], "--max-num-tokens 0: expected at least 1"),
        (["--max-num-tokens", "100000"], "--max-num-tokens 100000: the plan has memory for 8192 in one step"),
        (["--max-num-tokens", "127"], "--max-num-tokens 127: a step has a token of each sequence: expected at least"),
        (["--gguf", "x"], "--gguf: not with --runtime tensorrt_llm: use --checkpoint"),
        (["--option", "itl_ms=2"], "--option itl_ms: the runtime tensorrt_llm takes aborts, backend, block_reuse"),
        (["--option", "block_reuse=yes"], "option block_reuse=yes: must be true or false"),
        (["--option", "llm_options={}"], "--option llm_options: follows from the build: use --llm-option"),
        (["--llm-option", "dtype"], "--llm-option dtype: expected KEY=VALUE"),
        (["--llm-option", "max_seq_len=9"], "--llm-option max_seq_len: Conch sets this itself: use --max-seq-len"),
        (
            ["--calibration-dataset", "x"],
            "--calibration-dataset: goes with --precision fp8: nothing is calibrated here",
        ),
        (["--backend", "pytorch", "--keep-work"], "--keep-work: nothing is compiled with --backend pytorch"),
        (["--tensorrt-llm-examples", "none"], "must be a clone of TensorRT-LLM's repository at tag v1.2.1"),
    ],
)
def test_an_impossible_build_is_refused(builder: Builder, here: Here, extra: list[str], message: str) -> None:
    assert message in here.refusal(builder, *extra)


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
    assert message in here.refusal(builder, "--checkpoint", "owner/name@main", *extra)


def test_engines_that_are_named_are_refused_by_a_release_without_them(tmp_path: Path, here: Here) -> None:
    said = here.refusal(Builder.make(tmp_path, version="1.3.0rc29"), "--backend", "engine")
    assert "TensorRT-LLM 1.3.0rc29: builds are made for 1.2.1, the last with engines" in said


def test_a_machine_without_a_gpu_is_refused(builder: Builder, here: Here) -> None:
    message = "none (CUDA_VISIBLE_DEVICES='' hides every GPU): name the one to plan for: --gpu h100|h200|b200|a100|l40s"
    assert message in here.refusal(builder, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("trtllm-build=killed", "s: the machine's memory (RAM) ran out"),
        ("trtllm-build=empty", "engine: rank0.engine is empty, although trtllm-build had exit status 0; its log: "),
    ],
)
def test_a_tool_that_fails_is_explained_and_the_next_build_goes_on(
    builder: Builder, here: Here, fault: str, message: str
) -> None:
    assert message in here.refusal(builder, CONCH_DOUBLE_FAULT=fault)
    here.build(builder, CONCH_DOUBLE_FAULT="")
