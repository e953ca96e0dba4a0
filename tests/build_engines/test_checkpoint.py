"""Chat templates of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.checkpoint import Checkpoint, read_chat_templates
from build_engines.errors import BuildError
from build_engines.model_source import DEMO
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from tests.build_engines.tiny_checkpoint import CHAT_TEMPLATE

NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "no tools"}]


@pytest.mark.parametrize(
    ("in_config", "in_file", "expected"),
    [
        (CHAT_TEMPLATE, None, {"default": CHAT_TEMPLATE}),
        (CHAT_TEMPLATE, "in a file", {"default": "in a file"}),
        (None, "in a file", {"default": "in a file"}),
        (NAMED, None, {"default": "no tools", "tool_use": "tools"}),
        (NAMED, "in a file", {"default": "in a file", "tool_use": "tools"}),
        (NAMED[:1], None, {"tool_use": "tools"}),
        (None, None, {}),
    ],
)
def test_the_chat_templates_are_those_that_the_tokenizer_stage_uses(
    in_config: Any, in_file: str | None, expected: dict[str, str], checkpoint: Path
) -> None:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": in_config} if in_config else {}))
    if in_file is not None:
        (checkpoint / "chat_template.jinja").write_text(in_file)
    assert read_chat_templates(checkpoint) == expected
    files = TokenizerFiles.load(checkpoint)
    assert (files.chat_template, files.tool_template) == (expected.get("default"), expected.get("tool_use"))


@pytest.mark.parametrize("templates", [5, {"default": "hello"}, [{"name": "default"}], ["hello"]], ids=str)
def test_chat_templates_of_another_form_are_refused(templates: Any, checkpoint: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(BuildError, match=r"tokenizer_config\.json: chat_template: expected a text, or a list"):
        read_chat_templates(checkpoint)


def test_a_chat_template_in_another_encoding_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(BuildError, match=r"chat_template\.jinja: not UTF-8"):
        read_chat_templates(checkpoint)


def test_the_demo_is_greedy_by_its_authors_default() -> None:
    """At temperature 1 it wrote names of cities that do not exist."""
    assert Checkpoint.load(DEMO / "checkpoint").sampling == {"temperature": 0.0}
