"""`list`: the store and the catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from build_engines import model_source
from build_engines.__main__ import main
from tests.build_engines.serving_home import serving
from tests.build_engines.test_catalog import CATALOG, MODEL

GB = 10**9


def run(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str) -> str:
    assert main(["list", "--home", str(home), *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def built(checkpoint: Path, home: Path, model: str, *options: str) -> Path:
    """Build a model with weights of a tiny one; return its artifact."""
    assert main(["build", model, "--checkpoint", str(checkpoint), "--home", str(home), *options]) == 0
    [artifact] = home.glob(f"artifacts/{model}-*/")
    return artifact


def test_todays_models_are_before_older_ones_and_those_that_fit_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "memory_bytes", lambda: 16 * GB)
    assert run(capsys, tmp_path).splitlines()[1:] == ["`conch list --all` shows the catalog."]
    _, *sections = run(capsys, tmp_path, "--all").split("\n\n")
    for section, title, is_older in zip(sections, ("Models of today", "Older models"), (False, True), strict=True):
        first, header, *rows = section.splitlines()
        assert (first, header.split("  ")[0]) == (title, "model")
        assert {row.split()[0] for row in rows} == {each.model_id for each in CATALOG if each.is_older is is_older}
        is_last = ["no: too large" in row for row in rows]
        assert is_last == sorted(is_last) and set(is_last) == {False, True}


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        ("qwen3:8b", "GGUF Q4_K_M|pytorch: bf16, fp8, nvfp4|hermes|think|Apache-2.0"),
        ("gpt-oss:120b", "no: too large|pytorch: mxfp4|harmony|harmony|Apache-2.0"),
        ("gemma4:e4b", "GGUF Q4_K_M|pytorch: bf16 (TensorRT-LLM 1.3.0rc29)|gemma4|gemma4|Apache-2.0"),
        ("lfm2.5:1.2b", "generate|32768|GGUF Q4_K_M|no|lfm2|LFM open license"),
        ("bge-m3:567m", "558.0 M|embed|8192|GGUF F16|no|MIT"),
        ("bge-reranker-v2-m3:568m", "558.0 M|score|8192|GGUF Q8_0|no|Apache-2.0"),
        ("qwen3-embedding:0.6b", "595.8 M|embed|32768|converted, f16|no|Apache-2.0"),
        ("llama3.1:8b", "converted, q8_0|engine, pytorch: bf16, fp8, nvfp4|llama3_json|Llama 3.1 community, gated"),
        ("gemma2:9b", "GGUF of the hub|engine: bf16, fp8|plain|Gemma terms, gated"),
    ],
)
def test_the_list_says_where_a_model_runs(
    model: str, columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "memory_bytes", lambda: 16 * GB)
    [row] = [line for line in run(capsys, tmp_path, "--all").splitlines() if f" {model} " in line]
    assert "|".join(filter(None, (part.strip() for part in row.split("  ")))).endswith(f"|{columns}")


def test_the_list_says_which_models_fit_a_graphics_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, today, _ = run(capsys, tmp_path, "--all", "--gpu", "rtx4060ti-16gb").split("\n\n")
    _, header, *rows = today.splitlines()
    place = header.index("on GeForce RTX 4060 Ti 16GB")
    cells = {row.split()[0]: row[place:].split("  ")[0] for row in rows}
    assert (cells["Qwen/Qwen3-8B"], cells["Qwen/Qwen3-30B-A3B"]) == ("q4_k_m", "q4_k_m, 29 of 49 layers")
    are_split = ["layers" in cell for cell in cells.values()]
    assert are_split == sorted(are_split)
    models = json.loads(run(capsys, tmp_path, "--json", "--gpu", "rtx3060-8gb"))["models"]
    assert {model["on_card"]["gpu"] for model in models} == {"rtx3060-8gb"}
    assert main(["list", "--gpu", "rtx5090"]) == 1
    assert capsys.readouterr().err == "error: --gpu rtx5090: goes with --all or --json\n"


def test_the_store_is_first_with_names_values_and_the_server(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, tmp_path).startswith("The store is empty: `conch run demo` ")
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 261, "temperature": 0.6, "top_k": 20}')
    folder, _ = built(checkpoint, tmp_path, "tiny", "--alias", "gpt-4o"), built(checkpoint, tmp_path, "other")
    capsys.readouterr()
    with serving(tmp_path, "tiny") as url:
        store = run(capsys, tmp_path)
        assert run(capsys, tmp_path, "--all").startswith(f"{store}\nModels of today\n")
        artifacts = json.loads(run(capsys, tmp_path, "--json"))["artifacts"]
    _, other, tiny = store.splitlines()
    names_and_values = ["gpt-4o", "temperature=0.6", "top_k=20"]
    assert tiny.split()[:2] == ["tiny", folder.name]
    assert tiny.split()[3:] == ["MB", "generate", "1024", "llama_cpp", "f16", *names_and_values, url]
    assert url not in other
    assert [(each["model_id"], each["url"]) for each in artifacts] == [("other", None), ("tiny", url)]


def test_a_narrow_terminal_has_fewer_columns(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built(checkpoint, tmp_path, "tiny")
    capsys.readouterr()
    monkeypatch.setattr("build_engines.commands.list.terminal_width", lambda: 60)
    with serving(tmp_path, "tiny") as url:
        header, tiny, hint = run(capsys, tmp_path).splitlines()
    assert header.split() == ["model", "artifact", "size", "served", "at"]
    assert tiny.endswith(url) and "--all" in hint
    monkeypatch.setattr("build_engines.commands.list.terminal_width", lambda: 110)
    assert max(map(len, run(capsys, tmp_path, "--all").splitlines())) <= 110


def test_a_file_extends_the_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"me/my-model": MODEL}}))
    models = json.loads(run(capsys, tmp_path, "--catalog", str(path), "--json"))["models"]
    assert main(["list", "--catalog", str(path)]) == 1
    assert capsys.readouterr().err == f"error: --catalog {path}: goes with --all or --json\n"
    assert "me/my-model" in [model["model_id"] for model in models] and len(models) == len(CATALOG) + 1


def test_a_damaged_artifact_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "artifacts" / "broken-123"
    folder.mkdir(parents=True)
    (tmp_path / "artifacts" / ".unfinished").mkdir()
    _, line = run(capsys, tmp_path).partition("\n\n")[0].splitlines()
    assert line.endswith(f"  {folder}: not an artifact, manifest.json is missing")
