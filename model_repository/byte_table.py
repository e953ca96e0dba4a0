"""The bytes of every token of a vocabulary: computed at build time, read by the stop buffer and the detokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

FILE_NAME = "byte_table.npz"


def save_byte_table(path: Path, token_bytes: Sequence[bytes]) -> None:
    """Write the table: uint8 `blob` of all bytes, int64 `ends` [num_tokens], the end of each token's bytes in it."""
    ends = np.cumsum([len(item) for item in token_bytes], dtype=np.int64)
    np.savez_compressed(path, blob=np.frombuffer(b"".join(token_bytes), dtype=np.uint8), ends=ends)


def vocabulary_size(path: Path) -> int:
    """Return the number of tokens in a table."""
    with np.load(path) as arrays:
        return len(arrays["ends"])


def load_byte_table(path: Path) -> list[bytes]:
    """Return the bytes of each token by its id; empty for a token without text."""
    with np.load(path) as arrays:
        blob, ends = arrays["blob"].tobytes(), arrays["ends"].tolist()
    starts = [0, *ends[:-1]]
    return [blob[start:end] for start, end in zip(starts, ends, strict=True)]
