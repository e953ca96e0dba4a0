"""The files of a tokenizer folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from tests.model_repository.tokenizer.models import byte_level

TOOL_USE = {"name": "tool_use", "template": "t"}


def write(folder: Path, config: dict[str, Any] | None, template: str | None = None) -> TokenizerFiles:
    (folder / "tokenizer.json").write_text(json.dumps(byte_level()), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return TokenizerFiles.load(folder)


@pytest.mark.parametrize(
    ("config", "file", "template", "tool_template"),
    [
        (None, None, None, None),
        ({}, None, None, None),
        ({"chat_template": None}, None, None, None),
        ({"chat_template": "a"}, None, "a", None),
        ({"chat_template": "a"}, "b", "b", None),
        ({"chat_template": [TOOL_USE, {"name": "default", "template": "d"}]}, None, "d", "t"),
        ({"chat_template": [TOOL_USE]}, None, None, "t"),
        ({"chat_template": [TOOL_USE]}, "b", "b", "t"),
    ],
)
def test_chat_templates_are_found_where_they_may_be(
    config: dict[str, Any] | None, file: str | None, template: str | None, tool_template: str | None, tmp_path: Path
) -> None:
    files = write(tmp_path, config, file)
    assert (files.chat_template, files.tool_template) == (template, tool_template)


def test_special_tokens_are_read_in_both_forms(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    assert write(tmp_path, config).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
