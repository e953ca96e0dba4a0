"""What is final: a token is released once its text can no longer change, and never as a part of a stop sequence."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class _Held(NamedTuple):
    """A token that waits. Where bytes are counted, it is from the beginning of the completion."""

    token_id: int
    begin: int
    end: int
    is_boundary: bool  # no character is open at its end


class ReleaseGate:
    """Holds tokens back until their bytes are whole characters and cannot be the beginning of a stop sequence.

    Stop sequences are matched on bytes, so it does not matter how they were tokenized. The match that is complete
    first wins; among several complete at the same byte, the longest. Bytes that are not UTF-8, and can no longer
    become it, are released like any others.

    A stop sequence counts when it is completed by a token after the first `min_tokens`, as in vLLM: it may begin
    before, so the beginning of one is held back from the first token on; one that is complete by then is plain text.

    Args:
        byte_table: the bytes of each token id.
        stops: stop sequences, none of them empty.
        include_stop: the stop sequence that matches is part of the text, which ends with it.
        min_tokens: tokens in which no stop sequence is completed.
    """

    def __init__(
        self,
        byte_table: Mapping[int, bytes] | Sequence[bytes],
        stops: Sequence[bytes],
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._byte_table = byte_table
        self._stops = [_StopMatcher(stop) for stop in stops]
        self._include_stop = include_stop
        self._num_exempt = min_tokens  # tokens to come that complete no stop sequence
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_bytes = 0  # of all tokens
        self._open: list[_Held] = []  # in no stop sequence, but in a character that is not whole
        self._held: deque[_Held] = deque()  # behind them, the others
        self.matched_stop: int | None = None  # which stop sequence matched; push nothing more
        self.num_cut_bytes = 0  # of the last token released: bytes behind the end of the text

    def push(self, token_id: int) -> list[int]:
        """Take the next token and return the ids that are final now, in order."""
        token_bytes = self._byte_table[token_id]
        self._decoder.decode(token_bytes)
        begin, self._num_bytes = self._num_bytes, self._num_bytes + len(token_bytes)
        is_boundary = not self._decoder.getstate()[0]
        if is_boundary and not self._stops and not self._open:  # almost every token
            return [token_id]
        self._held.append(_Held(token_id, begin, self._num_bytes, is_boundary))
        match = self._find_stop(token_bytes, begin)
        if self._num_exempt:
            self._num_exempt -= 1
        elif match is not None:
            end, start, self.matched_stop = match
            return self._cut_at(end if self._include_stop else start)
        return self._release_final()

    def finish(self) -> list[int]:
        """Return the ids still held: generation ended without a stop sequence."""
        return [item.token_id for item in self._take_held()]

    def _find_stop(self, token_bytes: bytes, begin: int) -> tuple[int, int, int] | None:
        """Return end, start and index of the stop sequence complete first in the token's bytes."""
        matches: list[tuple[int, int, int]] = []
        for index, stop in enumerate(self._stops):
            length = stop.push(token_bytes)
            if length is not None:
                matches.append((begin + length, begin + length - stop.num_bytes, index))
        return min(matches) if matches else None

    def _cut_at(self, limit: int) -> list[int]:
        """Release the tokens that begin before the text's end and drop the rest."""
        released = [item for item in self._take_held() if item.begin < limit]
        if released:
            self.num_cut_bytes = max(0, released[-1].end - limit)
        return [item.token_id for item in released]

    def _release_final(self) -> list[int]:
        """Release what ends on a character boundary before anything that may become a stop sequence."""
        limit = self._num_bytes - max([stop.num_matched for stop in self._stops], default=0)
        released: list[int] = []
        while self._held and self._held[0].end <= limit:
            item = self._held.popleft()
            self._open.append(item)
            if item.is_boundary:
                released += [item.token_id for item in self._open]
                self._open.clear()
        return released

    def _take_held(self) -> list[_Held]:
        held = [*self._open, *self._held]
        self._open.clear()
        self._held.clear()
        return held


class _StopMatcher:
    """Finds one stop sequence byte by byte, as Knuth, Morris and Pratt do: with constant work for each on average.

    The table is made as far as the text has come in the stop sequence: a long one costs nothing in advance.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._borders = [0, 0]  # for each length of a beginning of it, the longest beginning that ends it too
        self.num_matched = 0  # bytes at the end of the text that begin the stop sequence, and are not all of it

    @property
    def num_bytes(self) -> int:
        """Length of the stop sequence."""
        return len(self._stop)

    def push(self, text: bytes) -> int | None:
        """Take the next bytes of the text and return how many of them first complete it."""
        stop, borders, num_matched, first = self._stop, self._borders, self.num_matched, None
        if not num_matched and stop[0] not in text:
            return None
        for index, byte in enumerate(text):
            while num_matched and stop[num_matched] != byte:
                num_matched = borders[num_matched]
            if stop[num_matched] != byte:
                continue
            num_matched += 1
            if num_matched == len(borders):
                self._extend_borders()
            if num_matched == len(stop):
                num_matched = borders[num_matched]
                first = index + 1 if first is None else first
        self.num_matched = num_matched
        return first

    def _extend_borders(self) -> None:
        """Add the border of the next longer beginning."""
        stop, borders, last = self._stop, self._borders, len(self._borders) - 1
        border = borders[last]
        while border and stop[border] != stop[last]:
            border = borders[border]
        borders.append(border + (stop[border] == stop[last]))
