"""Tokenizers for tests: the demo model's, and small ones of the kinds that models have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from build_engines.vocabulary import token_bytes
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from tests.build_engines.tiny_checkpoint import sentencepiece_description, tokenizer_description

DEMO = Path(str(resources.files("build_engines").joinpath("demo", "checkpoint")))
DEMO_FILES = TokenizerFiles.load(DEMO)
SPECIAL_IDS = {token.content: token_id for token_id, token in DEMO_FILES.tokenizer.get_added_tokens_decoder().items()}


def byte_table(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, as the build makes them."""
    return token_bytes(json.loads(tokenizer.to_str()), tokenizer.get_vocab_size(with_added_tokens=True))


DEMO_BYTES = byte_table(DEMO_FILES.tokenizer)


def plain_tokenizer() -> Tokenizer:
    """Return the demo tokenizer without its added tokens: it knows text only."""
    description = json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps(description | {"added_tokens": []}))


def files(description: dict[str, Any], template: str | None = None, **others: Any) -> TokenizerFiles:
    """Return the files of a model with this tokenizer.json and chat template."""
    return TokenizerFiles(Tokenizer.from_str(json.dumps(description)), template, **others)


def byte_level(added_tokens: Sequence[str] = (), **model: Any) -> dict[str, Any]:
    """Return a tokenizer.json whose tokens are the single bytes."""
    return tokenizer_description(added_tokens, **model)


def sentencepiece(added_tokens: Sequence[str] = (), *, space: str = "first", bos: bool = True) -> dict[str, Any]:
    """Return a tokenizer.json of SentencePiece's kind: letters, bytes, and an unknown, a BOS and other added tokens.

    Args:
        added_tokens: beside `<unk>` and `<s>`.
        space: where a space is put before a text: `first`, `always` or `never` as Metaspace has it, or `prepend`, the
            normalizer of older tokenizers.
        bos: put `<s>` before every prompt.
    """
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefghijklmnopqrstuvwxyz<>/"]
    merges = [["\u2581", letter] for letter in "abc"] + [["\u2581", "\u2581"]]
    vocab = {token: index for index, token in enumerate([*pieces, *map("".join, merges), *added_tokens])}
    description = sentencepiece_description()
    special = description["added_tokens"][0]
    description["added_tokens"] = [
        special | {"id": vocab[token], "content": token} for token in ("<unk>", "<s>", *added_tokens)
    ]
    description["model"] |= {"vocab": vocab, "merges": merges}
    if space != "prepend":
        metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": space, "split": False}
        description |= {"normalizer": None, "pre_tokenizer": metaspace}
    if not bos:
        description["post_processor"] = None
    return description
