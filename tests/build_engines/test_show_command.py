"""`show`: what a model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines import cpu_spec, model_source
from build_engines.__main__ import main
from build_engines.sequence_memory import SequenceMemory
from tests.build_engines.serving_home import serving
from tests.build_engines.tiny_embedders import write_embedder


def shown(capsys: pytest.CaptureFixture[str], home: Path, model: str) -> list[dict[str, str]]:
    """Return the facts of each block."""
    assert main(["show", model, "--home", str(home)]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    return [{line[:15].strip(): line[15:] for line in block.splitlines()} for block in blocks]


def test_an_artifact_has_its_facts(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--checkpoint", str(checkpoint), "--home", str(tmp_path), "--precision", "q8_0"]
    options += ["--context-window", "512", "--alias", "gpt-4o", "--default", "temperature=0.5"]
    assert main(["build", "tiny", *options, "--load", "demand"]) == 0
    [artifact] = tmp_path.glob("artifacts/tiny-*/")
    capsys.readouterr()
    with serving(tmp_path, "tiny") as url:
        [facts] = shown(capsys, tmp_path, "tiny")
    assert facts == {
        "model": "tiny",
        "artifact": str(artifact),
        "size": "0.1 MB",
        "task": "generate",
        "runtime": "llama_cpp",
        "architecture": "llama, 0.1 M",
        "precision": "q8_0, KV cache f16",
        "context": "512 tokens",
        "sequences": "16",
        "memory": "16 x 512 tokens, 0.0 GB with the weights",
        "aliases": "gpt-4o",
        "loading": "on demand",
        "defaults": "temperature=0.5",
        "tools": "plain",
        "chat template": "yes",
        "served at": url,
    }


def test_each_artifact_of_a_model_is_shown(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for precision in ("f16", "f32"):
        options = ["--checkpoint", str(checkpoint), "--home", str(tmp_path), "--precision", precision]
        assert main(["pull", "tiny", *options]) == 0
    capsys.readouterr()
    facts = shown(capsys, tmp_path, "tiny")
    assert {each["precision"] for each in facts} == {"f16, KV cache f16", "f32, KV cache f32"}


def test_a_model_of_the_catalog_has_its_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "memory_bytes", lambda: 8 * 10**9)
    [facts] = shown(capsys, tmp_path, "llama3.1:8b")
    assert facts["model"] == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert (facts["size"], facts["on this CPU"]) == ("16.1 GB in 16 bit", "converted, q4_k_m")


def test_a_model_that_embeds_has_its_pooling_and_the_memory_of_its_longest_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_spec, "check_loads", lambda *_, **__: SequenceMemory(step_bytes=2 * 10**9))
    checkpoint = write_embedder(tmp_path / "checkpoint", "bert")
    assert main(["pull", "tiny", "--checkpoint", str(checkpoint), "--home", str(tmp_path)]) == 0
    capsys.readouterr()
    [facts], [of_catalog] = (shown(capsys, tmp_path, name) for name in ("tiny", "embeddinggemma:300m"))
    assert (facts["task"], facts["memory"]) == ("embed, by mean", "prompts of 256 tokens, 2.0 GB with the weights")
    assert not facts.keys() & {"sequences", "tools", "chat template"}
    assert (of_catalog["task"], of_catalog["on GPUs"]) == ("embed, by mean", "no")


def test_a_damaged_artifact_is_shown_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "artifacts" / "broken-123"
    folder.mkdir(parents=True)
    [facts] = shown(capsys, tmp_path, "broken-123")
    assert facts["error"] == f"{folder}: not an artifact, manifest.json is missing"


def test_an_unknown_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "lamma3.1:8b", "--home", str(tmp_path)]) == 1
    assert "lamma3.1:8b: not in the catalog; did you mean llama3.1:8b or" in capsys.readouterr().err
