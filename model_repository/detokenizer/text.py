"""Token ids to text by the byte table. Stateless: the release gate cuts only where no character is open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_repository.contract import DELIVERY, RELEASE, RELEASE_DETAILS
from model_repository.deliveries import DeliveredChunks, Delivery
from model_repository.errors import InvalidRequest
from model_repository.generation import GenerationChunk, TokenLogprob, TopLogprob
from model_repository.stage_messages import DrawnLogprob, Release, ReleaseDetails
from model_repository.tensors import Tensors

_MALFORMED = (LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a tokenizer.json says of decoding that is not in the byte table."""

    special_tokens: Mapping[int, bytes]  # the strings of added tokens by id
    num_stripped_spaces: int = 0  # left out at the start of a text, at most

    @classmethod
    def load(cls, tokenizer_json: Path) -> Decoding:
        """Read it."""
        description = json.loads(tokenizer_json.read_text(encoding="utf-8"))
        special_tokens = {token["id"]: token["content"].encode() for token in description.get("added_tokens", ())}
        match description.get("decoder"):
            case {"decoders": [*_, {"type": "Strip", "content": " ", "start": start}]}:
                return cls(special_tokens, start)
        return cls(special_tokens)


def tensors_to_release(tensors: Tensors) -> Release:
    """Return the release that the stage's inputs carry.

    Raises:
        InvalidRequest: it is not what an engine packs: only who calls the stage directly can send such a one.
    """
    try:
        packed = tensors[RELEASE.name].reshape(-1)
        if RELEASE_DETAILS.name not in tensors:
            return Release.from_array(packed)
        return Release.from_array(packed, ReleaseDetails.from_json(tensors[RELEASE_DETAILS.name].item()))
    except _MALFORMED as exc:
        raise InvalidRequest("not a packed release", RELEASE.name) from exc


def tensors_to_delivery(tensors: Tensors) -> Delivery:
    """Return the delivery that the stage's inputs carry.

    Raises:
        InvalidRequest: it is not what an engine packs: only who calls the stage directly can send such a one.
    """
    try:
        return Delivery.from_tensors(tensors)
    except _MALFORMED as exc:
        raise InvalidRequest("not a packed delivery", DELIVERY.name) from exc


class Detokenizer:
    """Turns releases into chunks.

    Args:
        byte_table: the bytes of each token id.
        decoding: where the table has nothing, the special tokens' strings stand for the token among the most likely
            ones, and in a text that is no completion. Only such a text has spaces stripped: a completion goes on
            behind its prompt.
    """

    def __init__(self, byte_table: Sequence[bytes], decoding: Decoding) -> None:
        # A mapping, unlike a list, takes no id below zero.
        self._byte_table = dict(enumerate(byte_table))
        self._shown = self._byte_table | {
            token_id: shown for token_id, shown in decoding.special_tokens.items() if not self._byte_table.get(token_id)
        }
        self._num_stripped_spaces = decoding.num_stripped_spaces

    def chunk(self, release: Release) -> GenerationChunk:
        """Return what a release adds to the completion. U+FFFD stands only where the model's own bytes are not UTF-8.

        Raises:
            InvalidRequest: an id is outside the vocabulary: only who calls the stage directly can send one.
        """
        try:
            if release.details is not None:
                return self._detailed_chunk(release, release.details)
            return release_to_chunk(release, self._byte_table)
        except KeyError as exc:
            rule = f"they are 0 to {len(self._byte_table) - 1}"
            raise InvalidRequest(f"{exc.args[0]} is not a token: {rule}", RELEASE.name) from exc

    def chunks(self, delivery: Delivery) -> DeliveredChunks:
        """Return what a delivery's releases add to their completions; errors pass through.

        Raises:
            InvalidRequest: as `chunk`.
        """
        items = [(number, item if isinstance(item, str) else self.chunk(item)) for number, item in delivery.items]
        return DeliveredChunks(delivery.serial, tuple(items))

    def _detailed_chunk(self, release: Release, details: ReleaseDetails) -> GenerationChunk:
        table = self._shown if details.has_special_tokens else self._byte_table
        pieces = _cut([table[token_id] for token_id in release.token_ids], release.num_cut_bytes)
        text = _decode(pieces)
        if details.has_special_tokens:
            text = text[: self._num_stripped_spaces].lstrip(" ") + text[self._num_stripped_spaces :]
        echo_token_ids = details.prompt_token_ids if details.echo else ()
        token_ids = echo_token_ids + release.token_ids
        is_listed = details.has_token_ids or bool(details.logprobs)
        return GenerationChunk(
            # Each decoded by itself: what is open at the end of the prompt is no part of the completion.
            text=_decode(details.echo) + text,
            token_ids=token_ids if is_listed else (),
            logprobs=self._logprobs(token_ids, (*details.echo, *pieces), details.logprobs),
            num_prompt_tokens=len(echo_token_ids) if is_listed else 0,
            prompt_token_ids=details.prompt_token_ids if details.has_token_ids else (),
            finish_reason=release.finish_reason,
            stop_reason=details.stop_reason,
            usage=release.usage,
            timing=details.timing,
        )

    def _logprobs(
        self, token_ids: Iterable[int], pieces: Iterable[bytes], drawn: Sequence[DrawnLogprob]
    ) -> tuple[TokenLogprob, ...]:
        if not drawn:
            return ()
        return tuple(
            TokenLogprob(token_id, piece, item.logprob, self._top(item.top))
            for token_id, piece, item in zip(token_ids, pieces, drawn, strict=True)
        )

    def _top(self, top: Iterable[tuple[int, float]]) -> tuple[TopLogprob, ...]:
        return tuple(TopLogprob(token_id, self._shown[token_id], logprob) for token_id, logprob in top)


def release_to_chunk(release: Release, byte_table: Mapping[int, bytes] | Sequence[bytes]) -> GenerationChunk:
    """Return the text of a release without details: almost every one."""
    text_bytes = b"".join([byte_table[token_id] for token_id in release.token_ids])
    if release.num_cut_bytes:
        text_bytes = text_bytes[: -release.num_cut_bytes]
    return GenerationChunk(
        text=text_bytes.decode("utf-8", "replace"), finish_reason=release.finish_reason, usage=release.usage
    )


def _cut(pieces: list[bytes], num_bytes: int) -> list[bytes]:
    """Take so many bytes from the end of what the tokens' bytes concatenate to."""
    for index in range(len(pieces) - 1, -1, -1):
        num_taken = min(num_bytes, len(pieces[index]))
        pieces[index] = pieces[index][: len(pieces[index]) - num_taken]
        num_bytes -= num_taken
    return pieces


def _decode(pieces: Iterable[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")
