"""Single token deltas through a detokenizer."""

from __future__ import annotations

from model_repository.contract.output import GenerationChunk, OutputBatch, TokenDelta
from model_repository.detokenizer.text import Detokenizer


def chunk_of(detokenizer: Detokenizer, delta: TokenDelta) -> GenerationChunk:
    """Return the chunk of a delta that is alone in its output batch."""
    [(_, chunk)] = detokenizer.chunks(OutputBatch(0, 0, False, ((0, delta),))).items
    assert isinstance(chunk, GenerationChunk)
    return chunk
