"""`plan`: its output and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from build_engines.__main__ import main
from build_engines.catalog import Catalog
from build_engines.planner.overview import page
from tests.build_engines.test_catalog import MODEL
from tests.build_engines.test_config_architecture import CONFIGS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_plan_is_printed_with_a_bar_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run(capsys, "llama3.1:8b", "--gpu", "h100").splitlines()
    assert lines[0].startswith("meta-llama/Meta-Llama-3.1-8B-Instruct on 1 x H100: TP1, bf16")
    assert [len(line) for line in lines if line.startswith("  [")] == [60]


def test_settings_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpus", "16", "--nodes", "2", "--precision", "fp8", "--max-seq-len", "4096", "--max-batch-size", "7"]
    written = json.loads(run(capsys, "llama3.1:405b", "--gpu", "a100", *arguments[:4], "--json"))
    assert (written["num_gpus"], written["num_nodes"], written["precision"]) == (16, 2, "bf16")
    written = json.loads(run(capsys, "llama3.1:8b", "--gpu", "h100", "--gpus", "4", "--tensor", "2", "--json"))
    assert (written["tp_size"], written["pp_size"]) == (2, 2)
    written = json.loads(run(capsys, "llama3.1:405b", "--gpu", "h100", *arguments, "--json"))
    assert (written["precision"], written["max_seq_len"], written["max_batch_size"]) == ("fp8", 4096, 7)


def test_a_smaller_layout_is_proposed_as_replicas_on_all_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    fp8 = ["llama3.1:70b", "--gpu", "h100", "--precision", "fp8"]
    on_eight = run(capsys, *fp8, "--gpus", "8")
    assert "Or      4 replicas of 2 GPUs (TP2) on 8 x H100: `build --gpus 2`, then `render ARTIFACT" in on_eight
    assert "2 replicas of 2 GPUs (TP2) on 4 x H100" in run(capsys, *fp8, "--gpus", "4")
    assert "8 replicas of 1 GPU (TP1) on 8 x H100" in run(capsys, "llama3.1:8b", "--gpu", "h100")
    written = json.loads(run(capsys, *fp8, "--json"))
    assert written["replicas"] == {"num_replicas": 4, "num_gpus": 2}
    for arguments in (["--gpus", "2"], ["--gpus", "16", "--nodes", "2"]):
        assert json.loads(run(capsys, *fp8, *arguments, "--json"))["replicas"] is None


def test_without_a_gpu_all_are_in_a_table_with_the_refusals_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    table, _, refusals = run(capsys, "DeepSeek-V2.5").partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()][:3] == ["GPU", "H100", "H200"]
    assert refusals.count("does not run on") == 3
    assert "\n\n" not in run(capsys, "gemma2:9b")


def test_a_table_as_json_has_the_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(capsys, "DeepSeek-V2.5", "--json"))
    assert [(row["gpu"], "refusal" in row) for row in rows] == [
        ("h100", False),
        ("h200", False),
        ("b200", True),
        ("a100", True),
        ("l40s", True),
    ]


def test_the_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--all", "--markdown") == page(Catalog.load())


def test_a_folder_is_planned_by_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(CONFIGS["mistralai/Mixtral-8x7B-v0.1"]))
    found = json.loads(run(capsys, str(tmp_path / "my-model"), "--gpu", "h100", "--json"))
    assert (found["model"], found["tp_size"], found["precision"]) == ("my-model", 2, "bf16")


def test_a_model_of_the_users_catalog_is_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"me/my-model": MODEL}}))
    assert "me/my-model on 2 x H100: TP2, bf16" in run(capsys, "my-model", "--gpu", "h100", "--catalog", str(path))


def test_a_graphics_card_has_a_table_of_weights_with_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "qwen3:8b", "--gpu", "rtx4060ti-16gb").splitlines()
    assert lines[0].startswith("GeForce RTX 4060 Ti 16GB: 17.2 GB as sold, ")
    assert [row.split()[:5] for row in lines[3:6]] == [
        ["qwen3:8b", "f16", "25", "of", "37"],
        ["qwen3:8b", "q8_0", "37", "of", "37"],
        ["qwen3:8b", "q4_k_m", "37", "of", "37"],
    ]
    assert lines[5].endswith("4 x 7168  conch serve qwen3:8b")
    assert lines[-1] == "Install: pip install 'conch[cuda12]'"


def test_limits_reach_the_plan_of_a_graphics_card(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-seq-len", "2048", "--max-batch-size", "2"]
    fits = json.loads(run(capsys, "bge-m3", "--gpu", "arcb580", *limits, "--json"))
    fits += json.loads(run(capsys, "qwen3:8b", "--gpu", "arcb580", *limits, "--json"))
    assert {(fit["gpu"], fit["num_sequences"], fit["max_seq_len"]) for fit in fits} == {("arcb580", 2, 2048)}
    assert len(run(capsys, "--gpu", "rx9070xt").splitlines()) > 2 * len(Catalog.load())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["llama3.1:70b", "--gpu", "h100", "--gpus", "1"],
            "error: meta-llama/Meta-Llama-3.1-70B-Instruct does not fit: ",
        ),
        (["llama3.1:8b", "--all"], "error: --all: plans every model, not llama3.1:8b alone"),
        (["bge-m3"], "error: BAAI/bge-m3: the model's task is embed, and models on GPUs generate: `conch build "),
        (["--markdown"], "error: --markdown: goes with --all and nothing else"),
        (["--all", "--markdown", "--tensor", "2"], "error: --markdown: goes with --all and nothing else"),
        (["--gpus", "0", "--json"], "error: --gpus 0: expected at least 1 (and 8 more, of other GPUs, models and"),
        (
            ["qwen3:8b", "--gpu", "rtx5090", "--tensor", "2"],
            "error: --tensor 2: goes with the GPUs of TensorRT-LLM, not with --gpu rtx5090",
        ),
        (["--catalog", "none.yaml"], "error: none.yaml: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert failed(capsys, *arguments).startswith(message)


def test_a_wrong_choice_lists_the_words_that_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--precision", "nope"])
    assert re.search(r"--precision: nope: expected one of bf16, \w+", capsys.readouterr().err)
