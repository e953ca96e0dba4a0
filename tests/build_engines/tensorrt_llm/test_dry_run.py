"""Dry runs, on a machine without a GPU."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from build_engines.__main__ import main
from tests.build_engines.tensorrt_llm.tiny_model import write_catalog, write_tiny_checkpoint


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], list[list[str]]]:
    """Return the comments and the commands of a dry run."""
    assert main(["build", *arguments, "--runtime", "tensorrt_llm", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("# ")], [shlex.split(line) for line in lines if line[0] != "#"]


def test_two_nodes_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    comments, _ = dry_run(capsys, "llama3.1:405b", "--gpu", "h100", "--precision", "bf16")
    assert any("mpirun -n 16 --map-by ppr:8:node python -m build_engines build" in line for line in comments)
    assert any(
        "on one node: this command line; step 2 compiles the 16 ranks on its 8 GPUs" in line for line in comments
    )


def test_a_requested_layout_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    _, commands = dry_run(capsys, "llama3.1:8b", "--gpu", "h100", "--gpus", "4", "--tensor", "2")
    assert "--tp_size 2 --pp_size 2" in shlex.join(commands[0])


def test_a_checkpoint_that_is_there_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    catalog, folder = write_catalog(tmp_path / "catalog.yaml"), write_tiny_checkpoint(tmp_path / "my checkpoint")
    places = ["--checkpoint", str(folder), "--catalog", str(catalog), "--tensorrt-llm-examples", "/opt/x"]
    _, (convert, _) = dry_run(capsys, "tiny/llama", "--gpu", "l40s", *places)
    assert convert[1] == "/opt/x/examples/models/core/llama/convert_checkpoint.py"
    assert convert[convert.index("--model_dir") + 1] == str(folder)


def test_the_pytorch_backend_has_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    comments, commands = dry_run(capsys, "qwen2.5:7b", "--gpu", "h100", "--backend", "pytorch")
    assert commands == []
    assert comments[-1].startswith("# no commands: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen2.5:7b"], "--dry-run needs --gpu h100|h200|b200|a100|l40s"),
        (
            ["qwen2.5:7b", "--gpu", "b200", "--precision", "nvfp4"],
            "--precision nvfp4: goes with --backend pytorch, and a checkpoint in ModelOpt's NVFP4",
        ),
        (
            ["qwen2.5:7b", "--gpu", "h100", "--option", "chunked_prefill=false", "--max-seq-len", "8194"],
            "option chunked_prefill=false: a step takes 8192 tokens, and a prompt may have 8193: use a smaller",
        ),
        (
            ["qwen2.5:7b", "--gpu", "h100", "--option", "cuda_graph_mode=true", "--adapter", "formal=none"],
            "--option cuda_graph_mode=true: not with --adapter",
        ),
        (  # by the catalog, it has no chunked prefill
            ["deepseek-v2.5:236b", "--gpu", "h200", "--max-seq-len", "16384"],
            "option chunked_prefill=false: a step takes 8192 tokens, and a prompt may have 16383: use a smaller",
        ),
        (
            ["lfm2.5:1.2b", "--gpu", "h100"],
            "lfm2.5:1.2b: the PyTorch backend of TensorRT-LLM 1.2.1 and 1.3.0rc29 lists no Lfm2ForCausalLM: `conch bui",
        ),
        (  # TensorRT-LLM has its class
            ["qwen3-embedding:0.6b", "--gpu", "h100"],
            "Qwen/Qwen3-Embedding-0.6B: the model's task is embed, and models on GPUs generate: `conch build ",
        ),
        (["qwen2.5:7b", "--gpu", "h100", "--max-sequences", "129"], "max_sequences=129: Qwen/Qwen2.5-7B-Instruct is"),
    ],
)
def test_an_impossible_plan_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *arguments, "--runtime", "tensorrt_llm", "--dry-run"]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_model_without_pytorch_support_is_refused_before_the_download(
    dry_run: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Such an artifact was made of hundreds of gigabytes, and did not load."""
    model_id = "deepseek-ai/DeepSeek-V2.5"
    place = ["--gpu", "h200", "--home", str(tmp_path), "--checkpoint", f"{model_id}@main"]
    arguments = [model_id, "--runtime", "tensorrt_llm", "--backend", "pytorch", *place, *dry_run]
    assert main(["build", *arguments]) == 1
    rule = "the backend has no DeepseekV2ForCausalLM: use --backend engine"
    assert capsys.readouterr().err == f"error: --backend pytorch: cannot run {model_id}: {rule}\n"


@pytest.mark.parametrize("flag", [["--dry-run"], ["--gpu", "h100"]])
def test_another_runtime_refuses_the_options(flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "demo", *flag]) == 1
    assert capsys.readouterr().err == f"error: {flag[0]}: goes with --runtime tensorrt_llm\n"
