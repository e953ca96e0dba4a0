"""The prompt as the beginning of the text: what each of its tokens stands for."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding

from model_repository.tokenizer.vocabulary import Vocabulary


def spelled(text: str, encoding: Encoding, vocabulary: Vocabulary, byte_table: Sequence[bytes]) -> list[bytes]:
    """Return the bytes for which each token of a text stands: an added token for what the text says in its place."""
    tokens = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
    return [
        b""  # put there by the post-processor
        if is_put
        else text[start:end].encode()
        if vocabulary.is_added(token_id)
        else byte_table[token_id]
        for token_id, (start, end), is_put in tokens
    ]


def aligned(pieces: Sequence[bytes], text: str) -> tuple[bytes, ...]:
    """Return the pieces so that they are exactly the text.

    SentencePiece puts a space before the text, some tokenizers also behind added tokens: it is taken out again. Where a
    normalizer changed more than that, the first token stands for the whole text.
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
