"""Checkpoints from the hub, with a fake of its download."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from build_engines.commands.build import DEMO
from build_engines.errors import BuildError
from build_engines.hub import HubReference
from build_engines.tensorrt_llm.imported import PYTORCH_FILES
from tests.build_engines.stand_in_hub import COMMIT, stand_in_hub
from tests.build_engines.tensorrt_llm.tiny_model import tiny_entry

RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@dataclass
class FakeHub:
    """Has every repository, or fails."""

    folder: Path
    failure: Exception | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    patterns: Sequence[str] = ()

    def __call__(self, repo_id: str, *, revision: str, allow_patterns: Sequence[str]) -> str:
        self.asked.append((repo_id, revision))
        self.patterns = allow_patterns
        if self.failure is not None:
            raise self.failure
        return str(self.folder)


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct@main", "meta-llama/Llama-3.1-8B-Instruct", "main"),
        (f"a/b@{COMMIT}", "a/b", COMMIT),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
        ("a/b", "a/b", "main"),
    ],
)
def test_a_reference_names_a_repository_and_a_revision(text: str, repository: str, revision: str) -> None:
    assert HubReference.parse(text) == HubReference(repository, revision)


@pytest.mark.parametrize("text", ["", "folder", "a/b/c", "a/b@", "/abs/path", "a/b@x@y"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="no such folder, nor of the form OWNER/NAME@REVISION"):
        HubReference.parse(text)


def test_a_revision_is_resolved_to_the_commit(tmp_path: Path) -> None:
    hub = FakeHub(tmp_path / "snapshots" / COMMIT)
    hub.folder.mkdir(parents=True)
    (hub.folder / "model.safetensors").touch()
    entry = tiny_entry("llama", tmp_path)
    assert HubReference("a/b", "v1").download(entry, hub) == (hub.folder, COMMIT)
    assert hub.asked == [("a/b", "v1")]
    assert {"config.json", "tokenizer.json", "*.safetensors", "model.safetensors.index.json"} <= set(hub.patterns)
    assert not any("pth" in pattern or pattern == "*" for pattern in hub.patterns)  # no second copy of the weights


def test_a_repository_without_safetensors_gives_its_pytorch_files(tmp_path: Path) -> None:
    hub = FakeHub(tmp_path / COMMIT)
    HubReference("a/b", "v1").download(tiny_entry("llama", tmp_path), hub)
    assert hub.asked == [("a/b", "v1")] * 2
    assert hub.patterns == PYTORCH_FILES


def test_a_gated_repository_needs_a_token(tmp_path: Path) -> None:
    hub, entry = FakeHub(tmp_path / COMMIT), replace(tiny_entry("llama", tmp_path), is_gated=True)
    own = HubReference(entry.model_id, "main")
    with pytest.raises(BuildError, match=r"tiny/llama@main: a gated repository: accept its licence .* set HF_TOKEN"):
        own.download(entry, hub, lambda: None)
    assert hub.asked == []
    assert own.download(entry, hub, lambda: "token") == (hub.folder, COMMIT)
    assert HubReference("open/copy", "main").download(entry, hub, lambda: None) == (hub.folder, COMMIT)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (errors.GatedRepoError("no", response=RESPONSE), "a gated repository: accept its licence"),
        (errors.RevisionNotFoundError("no", response=RESPONSE), "the repository has no such revision"),
        (
            errors.RepositoryNotFoundError("no", response=RESPONSE),
            "no such folder here, and no such repository, or a private one",
        ),
        (errors.HfHubHTTPError("too busy\nsecond line", response=RESPONSE), "download failed: too busy$"),
        (errors.LocalEntryNotFoundError("no connection"), "download failed: no connection"),
        (OSError(28, "No space left on device"), "download failed: .*No space left on device"),
    ],
)
def test_what_the_hub_refuses_is_one_line(failure: Exception, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"^a/b@main: {message}"):
        HubReference("a/b", "main").download(tiny_entry("llama", tmp_path), FakeHub(tmp_path, failure))


def test_a_folder_without_a_commit_as_its_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="expected a folder named by its commit"):
        HubReference("a/b", "main").download(tiny_entry("llama", tmp_path), FakeHub(tmp_path / "main"))


def _build(tmp_path: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build_engines", "build", *words, "--state-dir", str(tmp_path)]
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_checkpoint_of_the_hub_is_built_for_llama_cpp_and_again_without_a_network(tmp_path: Path) -> None:
    with stand_in_hub({"org/demo": DEMO / "checkpoint"}) as endpoint:
        first = _build(tmp_path, endpoint, "org/demo")
        missing = _build(tmp_path, endpoint, "org/other")
        no_revision = _build(tmp_path, endpoint, "tiny", "--checkpoint", "org/demo@v9")
    assert first.returncode == 0, first.stderr
    assert [path.name for path in tmp_path.glob("artifacts/*/model.gguf")] == ["model.gguf"]
    for words in (["org/demo"], [f"org/demo@{COMMIT}"], ["org/demo", "--checkpoint", "org/demo@main"]):
        again = _build(tmp_path, endpoint, *words)
        assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert "error: org/other@main: no such folder here, and no such repository" in missing.stderr
    assert "error: org/demo@v9: the repository has no such revision" in no_revision.stderr
