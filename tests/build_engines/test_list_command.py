"""`list`: the catalog and the built artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from build_engines.__main__ import main
from tests.build_engines.test_catalog import CATALOG, MODEL


def run(capsys: pytest.CaptureFixture[str], state_dir: Path, *arguments: str) -> str:
    assert main(["list", "--home", str(state_dir), *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def built(checkpoint: Path, state_dir: Path, model: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """Build a model with weights of a tiny one; return its artifact."""
    assert main(["build", model, "--checkpoint", str(checkpoint), "--home", str(state_dir)]) == 0
    return Path(capsys.readouterr().out.split()[1])


def test_the_catalog_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = run(capsys, tmp_path).splitlines()
    assert header.split("  ")[0] == "model"
    assert [row.split()[0] for row in rows] == [entry.model_id for entry in CATALOG]
    assert all(row.endswith("  no") for row in rows)
    assert "Llama 3.1 community, gated" in rows[0]


def test_built_models_are_marked(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = built(checkpoint, tmp_path, "me/my-model", capsys)
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"me/my-model": MODEL}}))
    last = run(capsys, tmp_path, "--catalog", str(path)).splitlines()[-1]
    assert last.startswith("me/my-model")
    assert last.endswith("  llama_cpp f16")
    models = json.loads(run(capsys, tmp_path, "--catalog", str(path), "--json"))["models"]
    assert models[-1]["artifacts"] == [folder.name]
    assert models[0]["artifacts"] == []


def test_artifacts_outside_of_the_catalog_are_listed_after_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 261, "temperature": 0.6, "top_k": 20}')
    folder = built(checkpoint, tmp_path, "tiny", capsys)
    table, _, others = run(capsys, tmp_path).partition("\n\n")
    assert len(table.splitlines()) == 16
    assert others == f"Built, and not in the catalog\n  {folder.name}  llama_cpp f16 temperature=0.6 top_k=20\n"


def test_a_damaged_artifact_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "artifacts" / "broken-123"
    folder.mkdir(parents=True)
    (tmp_path / "artifacts" / ".unfinished").mkdir()
    others = run(capsys, tmp_path).partition("\n\n")[2].splitlines()
    assert others[1:] == [f"  broken-123  {folder}: not an artifact, manifest.json is missing"]
