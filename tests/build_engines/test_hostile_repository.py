"""Repositories whose files have values that no publisher has: each ends with a line that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.__main__ import main
from model_repository.system.terminal_text import STEERING
from tests.build_engines.stand_in_hub import Repository
from tests.build_engines.test_hub import Hub
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.build_engines.tiny_embedders import write_embedder

_OTHER_KINDS: tuple[Any, ...] = ("text", 10**30, {"a": {"b": 1}})
_STEERING = "\x1b]0;title\x07\x1b[2J\x9b2J\r\u202eecho\nmodel          fake"
_NUMBERS = ("max_position_embeddings", "vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads")


_VALUES: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("max_position_embeddings", "vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads"): _OTHER_KINDS,
    ("architectures", "rope_scaling", "layer_types", "text_config"): ("text", float("inf")),
    ("rms_norm_eps",): (-1, float("nan"), [1]),
    ("eos_token_id",): ("text", 2.5, [None]),
}
_CASES = [(field, value) for fields, values in _VALUES.items() for field in fields for value in values]


def _change(path: Path, **fields: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | fields))


class Publisher:
    """A hub with one repository, whose files a test changes."""

    def __init__(self, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._hub, self._capsys = hub, capsys

    def said(self, command: str, expected: int) -> str:
        """Return what a command prints."""
        with self._hub.serving(model=Repository(self.folder)):
            assert main([command, "org/model", "--home", str(self.folder.parent / "home")]) == expected
        captured = self._capsys.readouterr()
        return captured.out + captured.err


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Publisher:
    return Publisher(Hub(tmp_path, monkeypatch), write_checkpoint(tmp_path / "model"), capsys)


@pytest.mark.parametrize(("field", "value"), _CASES, ids=str)
def test_a_value_of_another_kind_is_one_line_with_its_field(field: str, value: Any, publisher: Publisher) -> None:
    """`max_position_embeddings` as a text ended `show` with a traceback."""
    _change(publisher.folder / "generation_config.json", eos_token_id=None)
    _change(publisher.folder / "config.json", **{field: value})
    [line] = publisher.said("pull", 1).splitlines()
    assert line.startswith("error: ") and field in line


def test_a_long_value_is_cut(publisher: Publisher) -> None:
    _change(publisher.folder / "config.json", hidden_act="x" * 1_000_000)
    assert len(publisher.said("pull", 1)) < 5000


@pytest.mark.parametrize("value", _OTHER_KINDS, ids=str)
def test_show_names_a_context_of_another_kind(value: Any, publisher: Publisher) -> None:
    _change(publisher.folder / "config.json", max_position_embeddings=value)
    [line] = publisher.said("show", 1).splitlines()
    assert line.startswith("error: config.json: max_position_embeddings=")


@pytest.mark.parametrize("path", ["../../outside", "/etc", "\0", 5, None, ["a"]], ids=str)
def test_the_folder_of_a_module_is_in_the_checkpoint(path: Any, publisher: Publisher, tmp_path: Path) -> None:
    publisher.folder = write_embedder(tmp_path / "bert", "bert", pooling_mode="cls")
    modules = json.loads((publisher.folder / "modules.json").read_text())
    modules[1]["path"] = path
    (publisher.folder / "modules.json").write_text(json.dumps(modules))
    assert "error: modules.json: path=" in publisher.said("pull", 1)


@pytest.mark.parametrize("mode", [[[1]], {"a": 1}, [{}], 5, "\ud800"], ids=ascii)
def test_a_pooling_of_another_kind_is_one_line(mode: Any, publisher: Publisher, tmp_path: Path) -> None:
    publisher.folder = write_embedder(tmp_path / "bert", "bert", pooling_mode=mode)
    [line] = publisher.said("pull", 1).splitlines()
    assert "1_Pooling/config.json: " in line


@pytest.mark.parametrize("command", ["show", "pull"])
def test_a_text_of_a_publisher_does_not_steer_the_terminal(command: str, publisher: Publisher) -> None:
    (publisher.folder / f"{_STEERING[:4]}.gguf".replace("/", "")).touch()
    _change(publisher.folder / "config.json", architectures=[f"Llama{_STEERING}"])
    said = publisher.said(command, int(command == "pull"))
    assert "\\u001b" in said
    assert not STEERING & set(map(ord, said))
    assert "fake" not in {line.split()[-1] for line in said.splitlines() if line.startswith("model")}
