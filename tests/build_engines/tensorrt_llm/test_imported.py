"""Checkpoints with PyTorch's own files: the copy that a build makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm import import_checkpoint
from build_engines.tensorrt_llm.imported import imported
from build_engines.tensorrt_llm.tool import ToolRun


@dataclass
class FakeTool:
    """Writes what the tool makes, or fails."""

    fails: bool = False
    ran: list[ToolRun] = field(default_factory=list)

    def __call__(self, run: ToolRun) -> None:
        self.ran.append(run)
        (run.output / "model.safetensors").write_text("weights")
        if self.fails:
            raise BuildError("import failed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the older kind."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "pytorch_model-00001-of-00001.bin", "tokenizer.model"):
        (folder / name).write_text(name)
    return folder


def test_a_checkpoint_is_imported_once(folder: Path, tmp_path: Path) -> None:
    tool = FakeTool()
    copy = imported(folder, tmp_path / "work", 1, tool)
    assert [path.name for path in copy.iterdir()] == ["model.safetensors"]
    assert imported(folder, tmp_path / "work", 1, tool) == copy
    [run] = tool.ran
    assert run.command[1:3] == (import_checkpoint.__file__, str(folder))
    (folder / "pytorch_model-00001-of-00001.bin").write_text("other weights")
    assert imported(folder, tmp_path / "work", 1, tool) != copy


def test_a_failed_import_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="import failed"):
        imported(folder, tmp_path / "work", 1, FakeTool(fails=True))
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_a_checkpoint_that_has_everything_is_not_copied(weights: str, folder: Path, tmp_path: Path) -> None:
    for name in (weights, "tokenizer.json"):
        (folder / name).touch()
    assert imported(folder, tmp_path / "work", 1, FakeTool()) == folder
