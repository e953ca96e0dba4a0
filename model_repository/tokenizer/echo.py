"""The prompt as the beginning of the text: the bytes of each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding

from model_repository.tokenizer.vocabulary import Vocabulary


def spelled(text: str, encoding: Encoding, vocabulary: Vocabulary, byte_table: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of each token of a text: for an added token the part of the text that it replaces."""
    tokens = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
    return [
        b""  # added by the post-processor
        if is_inserted
        else text[start:end].encode()
        if vocabulary.is_added(token_id)
        else byte_table[token_id]
        for token_id, (start, end), is_inserted in tokens
    ]


def aligned(pieces: Sequence[bytes], text: str) -> tuple[bytes, ...]:
    """Return the pieces so that they are exactly the text.

    SentencePiece adds a space before the text, some tokenizers also behind added tokens: these spaces are removed. If a
    normalizer changed more, the first token stands for the whole text.
    """
    whole, position, echo = text.encode(), 0, []
    for piece in pieces:
        if not whole.startswith(piece, position):
            piece = piece.removeprefix(b" ")
        echo.append(piece)
        if not whole.startswith(piece, position):
            break
        position += len(piece)
    if b"".join(echo) == whole and len(echo) == len(pieces):
        return tuple(echo)
    return (whole, *[b""] * (len(pieces) - 1))
