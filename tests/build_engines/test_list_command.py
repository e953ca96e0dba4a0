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


def test_models_that_the_cpu_serves_are_before_those_that_need_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "memory_bytes", lambda: 16 * GB)
    header, *rows = run(capsys, tmp_path).partition("\n\n")[2].splitlines()
    assert header.split("  ")[0] == "model"
    assert {row.split()[0] for row in rows} == {entry.model_id for entry in CATALOG}
    on_cpu = {row.split()[0]: row.rpartition("  ")[2] for row in rows}
    assert on_cpu["meta-llama/Llama-3.2-1B-Instruct"] == "f16"
    assert on_cpu["Qwen/Qwen2.5-7B-Instruct"] == "q8_0"
    assert on_cpu["google/gemma-2-9b-it"] == "as a GGUF file"
    is_last = [text == "no: needs a GPU" for text in on_cpu.values()]
    assert is_last == sorted(is_last) and set(is_last) == {False, True}
    assert "Llama 3.1 community, gated" in rows[0]


def test_the_store_is_first_with_names_values_and_the_server(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, tmp_path).startswith("The store is empty: `conch run demo` ")
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 261, "temperature": 0.6, "top_k": 20}')
    folder, _ = built(checkpoint, tmp_path, "tiny", "--alias", "gpt-4o"), built(checkpoint, tmp_path, "other")
    capsys.readouterr()
    with serving(tmp_path, "tiny") as url:
        store, _, catalog = run(capsys, tmp_path).partition("\n\n")
        artifacts = json.loads(run(capsys, tmp_path, "--json"))["artifacts"]
    assert len(catalog.splitlines()) == 16
    _, other, tiny = store.splitlines()
    names_and_values = ["gpt-4o", "temperature=0.6", "top_k=20"]
    assert tiny.split()[:2] == ["tiny", folder.name]
    assert tiny.split()[3:] == ["MB", "1024", "llama_cpp", "f16", *names_and_values, url]
    assert url not in other
    assert [(each["model_id"], each["url"]) for each in artifacts] == [("other", None), ("tiny", url)]


def test_a_file_extends_the_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"me/my-model": MODEL}}))
    models = json.loads(run(capsys, tmp_path, "--catalog", str(path), "--json"))["models"]
    assert "me/my-model" in [model["model_id"] for model in models] and len(models) == 16


def test_a_damaged_artifact_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "artifacts" / "broken-123"
    folder.mkdir(parents=True)
    (tmp_path / "artifacts" / ".unfinished").mkdir()
    _, line = run(capsys, tmp_path).partition("\n\n")[0].splitlines()
    assert line.endswith(f"  {folder}: not an artifact, manifest.json is missing")
