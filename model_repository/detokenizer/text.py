"""Token ids to text by the byte table. Stateless: the engine cuts only at the borders of characters."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import (
    Announcement,
    ChunkBatch,
    DeltaDetails,
    DrawnLogprob,
    GenerationChunk,
    OutputBatch,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
)
from model_repository.contract.tensors import OUTPUT_BATCH
from model_repository.errors import InvalidRequest


class _AddedToken(Struct):
    id: int
    content: str


class _TokenizerFile(Struct):
    """The part of a tokenizer.json that is read: a vocabulary takes ten times as long."""

    added_tokens: list[_AddedToken] = []


def load_special_tokens(tokenizer_json: Path) -> dict[int, bytes]:
    """Return the strings of added tokens by id."""
    file = msgspec.json.decode(tokenizer_json.read_bytes(), type=_TokenizerFile)
    return {token.id: token.content.encode() for token in file.added_tokens}


class Detokenizer:
    """Turns token deltas into chunks.

    Args:
        byte_table: the bytes of each token id.
        special_tokens: their strings by id, which are shown in lists of the most likely tokens.
    """

    def __init__(self, byte_table: Sequence[bytes], special_tokens: Mapping[int, bytes]) -> None:
        # Unlike a list, a mapping accepts no negative id.
        self._byte_table = dict(enumerate(byte_table))
        self._shown = self._byte_table | {
            token_id: shown for token_id, shown in special_tokens.items() if not self._byte_table.get(token_id)
        }

    def chunks(self, batch: OutputBatch) -> ChunkBatch:
        """Return the chunks of a batch's deltas; other items pass through. U+FFFD replaces bytes that are not UTF-8.

        Raises:
            InvalidRequest: an id is outside the vocabulary; only a direct caller of the stage can send one.
        """
        try:
            return ChunkBatch(batch.serial, tuple((number, self._chunk(item)) for number, item in batch.items))
        except KeyError as exc:
            rule = f"they are 0 to {len(self._byte_table) - 1}"
            raise InvalidRequest(f"{exc.args[0]} is not a token: {rule}", OUTPUT_BATCH.name) from exc

    def _chunk(self, item: TokenDelta | Announcement | str) -> GenerationChunk | Announcement | str:
        if not isinstance(item, TokenDelta):
            return item
        if item.details is not None:
            return self._detailed_chunk(item, item.details)
        return delta_to_chunk(item, self._byte_table)

    def _detailed_chunk(self, delta: TokenDelta, details: DeltaDetails) -> GenerationChunk:
        chunk = delta_to_chunk(delta, self._byte_table)
        pieces: list[bytes] = []  # of the text, for log probabilities
        if details.logprobs:
            pieces = _cut([self._byte_table[token_id] for token_id in delta.token_ids], delta.num_cut_bytes)
        echo_token_ids = details.prompt_token_ids if details.echo else ()
        token_ids = echo_token_ids + delta.token_ids
        is_listed = details.has_token_ids or bool(details.logprobs)
        return replace(
            chunk,
            # Decoded one by one: an unfinished character at the end of the prompt is not part of the completion.
            text=b"".join(details.echo).decode("utf-8", "replace") + chunk.text,
            token_ids=token_ids if is_listed else (),
            logprobs=self._logprobs(token_ids, (*details.echo, *pieces), details.logprobs),
            prompt_logprobs=self._logprobs(
                details.prompt_token_ids,
                map(self._shown.__getitem__, details.prompt_token_ids),
                details.prompt_logprobs,
            ),
            num_prompt_tokens=len(echo_token_ids) if is_listed else 0,
            prompt_token_ids=details.prompt_token_ids if details.has_token_ids else (),
            stop_reason=details.stop_reason,
            cum_logprob=details.cum_logprob,
            timing=details.timing,
        )

    def _logprobs(
        self, token_ids: Iterable[int], pieces: Iterable[bytes], drawn: Sequence[DrawnLogprob]
    ) -> tuple[bytes, ...]:
        if not drawn:
            return ()
        return pack_logprobs(
            TokenLogprob(token_id, piece, item.logprob, self._top(item.top), item.rank)
            for token_id, piece, item in zip(token_ids, pieces, drawn, strict=True)
        )

    def _top(self, top: Iterable[tuple[int, float]]) -> tuple[TopLogprob, ...]:
        return tuple(TopLogprob(token_id, self._shown[token_id], logprob) for token_id, logprob in top)


def delta_to_chunk(delta: TokenDelta, byte_table: Mapping[int, bytes] | Sequence[bytes]) -> GenerationChunk:
    """Return the chunk of a delta without details, as almost every delta is."""
    text_bytes = b"".join([byte_table[token_id] for token_id in delta.token_ids])
    if delta.num_cut_bytes:
        text_bytes = text_bytes[: -delta.num_cut_bytes]
    return GenerationChunk(
        text=text_bytes.decode("utf-8", "replace"),
        finish_reason=delta.finish_reason,
        usage=delta.usage,
        spans=_in_characters(delta.spans, text_bytes) if delta.spans else (),
        num_tokens=len(delta.token_ids),
        packed_token_ids=array("i", delta.token_ids).tobytes(),
    )


def _in_characters(sizes: Sequence[int], text_bytes: bytes) -> tuple[int, ...]:
    ends = (len(text_bytes[:end].decode("utf-8", "replace")) for end in accumulate(sizes))
    return tuple(end - start for start, end in pairwise((0, *ends)))


def _cut(pieces: list[bytes], num_bytes: int) -> list[bytes]:
    """Remove `num_bytes` bytes from the end of the concatenated pieces."""
    for index in range(len(pieces) - 1, -1, -1):
        num_cut = min(num_bytes, len(pieces[index]))
        pieces[index] = pieces[index][: len(pieces[index]) - num_cut]
        num_bytes -= num_cut
    return pieces
