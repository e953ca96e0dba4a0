"""The bytes of every token, from tokenizer.json."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from build_engines.errors import UnsupportedCheckpoint

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(description: dict[str, Any], vocab_size: int, visible: Collection[str] = ()) -> list[bytes]:
    """Return the bytes of each token id; empty for special tokens and unused ids.

    Args:
        description: tokenizer.json.
        vocab_size: rows of the model's output, which may be more than the tokenizer has.
        visible: special tokens that are text: those of the tool-call format.

    Raises:
        UnsupportedCheckpoint: neither byte-level BPE nor SentencePiece nor WordPiece.
    """
    model = description.get("model")
    vocab = vocab_of(model) if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not vocab:
        kind = model.get("type") if isinstance(model, dict) else model
        raise UnsupportedCheckpoint(f"tokenizer.json: model {kind}: expected a vocabulary")
    to_bytes = _token_decoder(description.get("decoder"))
    table = [b""] * max(vocab_size, max(vocab.values()) + 1)
    for token, token_id in vocab.items():
        table[token_id] = to_bytes(token)
    for added in description.get("added_tokens", ()):
        if added["id"] < len(table):
            # As in Hugging Face's decoding: special tokens are not text, other added tokens are.
            is_text = not added["special"] or added["content"] in visible
            table[added["id"]] = to_bytes(added["content"]) if is_text else b""
    return table


def vocab_of(model: Mapping[str, Any]) -> Any:
    """Return the token ids of a tokenizer.json's `model` by token. A unigram model lists tokens with their scores."""
    vocab = model.get("vocab")
    return {token: token_id for token_id, (token, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab


def _token_decoder(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """Return the function from a token to its bytes, for the decoder of a tokenizer.json.

    A last step of type Strip changes only the start of a text; the detokenizer does it.

    Raises:
        UnsupportedCheckpoint: the decoder has other steps.
    """
    steps: list[dict[str, Any]] = list(decoder.get("decoders", [decoder])) if decoder else []
    match steps:
        case [*_, {"type": "Strip", "content": " ", "stop": 0}]:
            steps.pop()
    match steps:
        case [{"type": "ByteLevel"}]:
            return _byte_level_bytes
        case [{"type": "WordPiece", "prefix": str(prefix)}]:
            return functools.partial(_word_piece_bytes, prefix)
        case [{"type": "Metaspace", "replacement": str(space)}]:
            return functools.partial(_sentencepiece_bytes, [(space, " ")])
        case [*replaces, {"type": "ByteFallback"}, {"type": "Fuse"}]:
            return functools.partial(_sentencepiece_bytes, list(map(_replacement, replaces)))
        case _:
            types = [step["type"] for step in steps]
            rule = (
                "expected ByteLevel, WordPiece, Metaspace, or Replace with ByteFallback, Fuse, and Strip at the start"
            )
            raise UnsupportedCheckpoint(f"tokenizer.json: decoder {types}: {rule}")


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return pattern, content
        case _:
            raise UnsupportedCheckpoint(
                f"tokenizer.json: decoder {step}: expected Replace with a pattern of type String"
            )


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # not in the alphabet: text, as in `tokenizers`
        return token.encode()


def _sentencepiece_bytes(replacements: Sequence[tuple[str, str]], token: str) -> bytes:
    for pattern, content in replacements:
        token = token.replace(pattern, content)
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.encode()


def _word_piece_bytes(prefix: str, token: str) -> bytes:
    return (token.removeprefix(prefix) if token.startswith(prefix) else f" {token}").encode()


def _bytes_of_characters() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 characters, then U+0100 upwards for the other bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _bytes_of_characters()
