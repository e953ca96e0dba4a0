"""Artifacts on disk: complete or missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build_engines import artifact, store
from build_engines.artifact import Manifest
from build_engines.errors import ArtifactInvalid
from build_engines.serving import Serving
from tests.build_engines import test_render

MANIFEST = replace(
    test_render.MANIFEST,
    sampling={"temperature": 0.6, "top_k": 20},
    options={"itl_ms": "20"},
    serving=Serving.of(["gpt-4o"], {"chat_max_tokens": None, "context_length_exceeded_behavior": "error"}),
    files={},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed artifact with two files."""
    folder = tmp_path / "artifact"
    with artifact.written_aside(folder) as aside:
        (aside / "weights").write_bytes(b"123")
        (aside / "tokenizer").mkdir()
        (aside / "tokenizer" / "tokenizer.json").write_text("{}")
        artifact.seal(aside, MANIFEST)
    return folder


def test_a_manifest_survives_its_file(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    assert Manifest.load(tmp_path) == MANIFEST


@pytest.mark.parametrize(
    ("default", "sampling"),
    [
        ({}, {"temperature": 0.6, "top_k": 20}),
        ({"temperature": 0.2, "min_p": 0.1}, {"temperature": 0.2, "top_k": 20, "min_p": 0.1}),
        ({"top_k": 0}, {"temperature": 0.6}),
        ({"sampling": "openai"}, {}),
    ],
)
def test_an_operators_defaults_go_before_the_models(default: dict[str, Any], sampling: dict[str, Any]) -> None:
    serving = Serving.of([], default | {"chat_max_tokens": None})
    assert replace(MANIFEST, serving=serving).defaults == sampling | {"chat_max_tokens": None}


def test_a_sealed_artifact_is_complete_and_verified(folder: Path) -> None:
    assert artifact.why_incomplete(folder) is None
    manifest = artifact.verify(folder)
    assert set(manifest.files) == {"weights", "tokenizer/tokenizer.json"}
    assert manifest.files["weights"] == "a665a45920422f9d417e4867efdc4fb8a04a1f3fff1fa07e998e86f7f7a27ae3"


def test_a_changed_file_is_found(folder: Path) -> None:
    (folder / "weights").write_bytes(b"124")
    assert artifact.why_incomplete(folder) is None  # which does not read it
    with pytest.raises(ArtifactInvalid, match=r"weights: differs from its digest in manifest\.json: remove"):
        artifact.verify(folder)


def test_a_missing_file_is_found(folder: Path) -> None:
    (folder / "tokenizer" / "tokenizer.json").unlink()
    assert artifact.why_incomplete(folder)
    with pytest.raises(ArtifactInvalid, match=r"tokenizer\.json: missing, build it again"):
        artifact.verify(folder)


def test_an_artifact_of_another_format_keeps_the_name_of_its_model(tmp_path: Path) -> None:
    """`show` and `rm` did not know the model, and `rm` of its name left the artifact in the store."""
    old = tmp_path / "artifacts" / "org--demo-1.5-0123456789ab"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text('{"format": 5}')
    [found] = store.find(tmp_path, "org/demo-1.5")
    assert (found.folder, found.manifest) == (old, None)
    assert "format 5, expected 6: build it again" in found.error


def test_an_artifact_of_another_format_is_refused(folder: Path) -> None:
    fields = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(fields | {"format": 99}))
    assert artifact.why_incomplete(folder)
    with pytest.raises(ArtifactInvalid, match="format 99, expected 6: build it again"):
        artifact.verify(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{}", "not a manifest"),
        ('{"format": 6, "eos_token_ids": [1]}', "not a manifest"),
        ('{"format": 6, "eos_token_ids": [1], "serving": {"aliases": [""], "defaults": {}}}', "not a manifest"),
    ],
)
def test_a_malformed_manifest_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert artifact.why_incomplete(tmp_path)
    with pytest.raises(ArtifactInvalid, match=rf"manifest\.json: {message}"):
        Manifest.load(tmp_path)


def test_an_artifact_needs_a_manifest(tmp_path: Path) -> None:
    assert artifact.why_incomplete(tmp_path)
    with pytest.raises(ArtifactInvalid, match=r"not an artifact, manifest\.json is missing"):
        Manifest.load(tmp_path)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), artifact.written_aside(tmp_path / "artifact") as aside:
        (aside / "weights").write_bytes(b"123")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_build_leaves_the_older_one(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), artifact.written_aside(folder):
        raise KeyboardInterrupt
    artifact.verify(folder)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_new_folder_replaces_the_old_one(folder: Path) -> None:
    with artifact.written_aside(folder) as aside:
        (aside / "other").touch()
        artifact.verify(folder)  # the older one is there until the end
    assert [path.name for path in folder.iterdir()] == ["other"]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_key_depends_on_every_part_and_not_on_their_order() -> None:
    assert artifact.key_of(a=1, b={"c": 2, "d": 3}) == artifact.key_of(b={"d": 3, "c": 2}, a=1)
    keys = [artifact.key_of(**parts) for parts in ({}, {"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None})]
    assert len(set(keys)) == len(keys)
