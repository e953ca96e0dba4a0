"""A tokenizer folder in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_repository.tokenizer.chat_template import SPECIAL_TOKEN_NAMES


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer, and the chat templates with the special tokens that they name."""

    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    tool_template: str | None = None  # template for conversations with tools, if separate

    @classmethod
    def load(cls, folder: Path) -> TokenizerFiles:
        """Read tokenizer.json, and if present tokenizer_config.json and chat_template.jinja.

        Raises:
            Exception: tokenizer.json is malformed, or a special token is not a text.
        """
        config: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").is_file():
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        templates = config.get("chat_template") or {}
        if isinstance(templates, str):
            templates = {"default": templates}
        elif isinstance(templates, list):  # several named ones
            templates = {item["name"]: item["template"] for item in templates}
        if (folder / "chat_template.jinja").is_file():
            templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        special_tokens = {}
        for name in SPECIAL_TOKEN_NAMES:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if token is not None and not isinstance(text, str):
                raise ValueError(
                    f"tokenizer_config.json: {name}={token!r}: expected a text, or an object with its content"
                )
            if text is not None:
                special_tokens[name] = text
        return cls(
            tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
            chat_template=templates.get("default"),
            special_tokens=special_tokens,
            tool_template=templates.get("tool_use"),
        )
