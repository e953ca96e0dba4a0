"""Holds back tokens until their text is final, and removes stop sequences from the text."""

from __future__ import annotations

import codecs
import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from model_repository.contract.request import Thinking
from model_repository.reasoning_formats import head_at, may_become_head


class _BufferedToken(NamedTuple):
    """A token with its bytes, counted from the beginning of the completion."""

    token_id: int
    begin: int
    end: int
    is_boundary: bool  # the token ends a character


class StopBuffer:
    """Holds tokens back until their bytes are whole characters and cannot begin a stop sequence.

    Stop sequences are matched on bytes, with any tokenization. The match that is complete first wins; of several
    complete at the same byte, the longest. Bytes that can never become UTF-8 pass like any others.

    As in vLLM, a stop sequence counts only if a token after the first `min_tokens` completes it. It may begin earlier,
    so its beginning is held back from the first token on. A stop sequence that is complete earlier is plain text.

    Stop sequences are looked for in the answer only, behind the thinking.

    Args:
        stops: stop sequences, not empty.
        include_stop: the text ends with the stop sequence, instead of before it.
        min_tokens: the number of first tokens that complete no stop sequence.
        border: finds the end of the thinking; None: the model does not think.
    """

    def __init__(
        self,
        byte_table: Mapping[int, bytes] | Sequence[bytes],
        stops: Sequence[bytes],
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        border: ThinkingBorder | None = None,
    ) -> None:
        self._border = border
        self._byte_table = byte_table
        self._stops = [_StopMatcher(stop) for stop in stops]
        self._include_stop = include_stop
        self._num_exempt = min_tokens  # next tokens that complete no stop sequence
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_bytes = 0  # size of all tokens
        self._open: list[_BufferedToken] = []  # tokens outside all stop sequences, in an unfinished character
        self._buffered: deque[_BufferedToken] = deque()  # the tokens behind them
        self.matched_stop: int | None = None  # the index of the matched stop sequence: the completion has ended
        self.num_cut_bytes = 0  # bytes of the last final token behind the end of the text

    def push(self, token_id: int) -> list[int]:
        """Add the next token and return the ids that are final now, in order."""
        token_bytes = self._byte_table[token_id]
        self._decoder.decode(token_bytes)
        begin, self._num_bytes = self._num_bytes, self._num_bytes + len(token_bytes)
        is_boundary = not self._decoder.getstate()[0]
        if is_boundary and not (self._stops or self._open or self._buffered or self._border):  # almost every token
            return [token_id]
        self._buffered.append(_BufferedToken(token_id, begin, self._num_bytes, is_boundary))
        if self._border is not None:
            token_bytes = self._border.push(token_bytes)
            begin = self._num_bytes - len(token_bytes)
            self._border = self._border if self._border.num_bytes is None else None
        match = self._find_stop(token_bytes, begin)
        if self._num_exempt:
            self._num_exempt -= 1
        elif match is not None:
            end, start, self.matched_stop = match
            return self._cut_at(end if self._include_stop else start)
        return self._pop_final()

    def finish(self) -> list[int]:
        """Return the remaining ids: generation ended without a stop sequence."""
        return [item.token_id for item in self._pop_all()]

    def _find_stop(self, token_bytes: bytes, begin: int) -> tuple[int, int, int] | None:
        """Return end, start and index of the first complete stop sequence."""
        matches: list[tuple[int, int, int]] = []
        for index, stop in enumerate(self._stops):
            length = stop.push(token_bytes)
            if length is not None:
                matches.append((begin + length, begin + length - stop.num_bytes, index))
        return min(matches) if matches else None

    def _cut_at(self, limit: int) -> list[int]:
        """Return the tokens that begin before the text's end and drop the rest."""
        final = [item for item in self._pop_all() if item.begin < limit]
        if final:
            self.num_cut_bytes = max(0, final[-1].end - limit)
        return [item.token_id for item in final]

    def _pop_final(self) -> list[int]:
        """Return whole characters before the first possible beginning of a stop sequence."""
        num_held = max([stop.num_matched for stop in self._stops], default=0)
        if self._border is not None:
            num_held = max(num_held, self._border.num_held)
        limit = self._num_bytes - num_held
        final: list[int] = []
        while self._buffered and self._buffered[0].end <= limit:
            item = self._buffered.popleft()
            self._open.append(item)
            if item.is_boundary:
                final += [item.token_id for item in self._open]
                self._open.clear()
        return final

    def _pop_all(self) -> list[_BufferedToken]:
        items = [*self._open, *self._buffered]
        self._open.clear()
        self._buffered.clear()
        return items


class ThinkingBorder:
    """Finds the border between the thinking and the answer in the bytes of a completion.

    The model thinks if its prompt opened the thinking, or if its own text begins with the begin marker, which white
    space may precede. The thinking ends with the first end marker, or with the completion.

    Where messages have heads, the thinking goes on up to the first message of another kind. The head of a call belongs
    to the answer, any other head to the thinking.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._format = thinking.format
        self._end = _StopMatcher(thinking.format.end.encode())
        self._begin = thinking.format.begin.encode()
        self._head: bytes | None = None if thinking.is_open else b""  # text that may become a marker or head
        self._num_bytes = 0  # before `_head`
        self._num_tokens = 0
        self._num_head_tokens = 0  # that began in `_head`
        self.num_bytes: int | None = None  # size of the thinking; None: it goes on
        self.num_held = 0  # last bytes that may begin a marker or head

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has begun, and goes on."""
        return self._head is None and self.num_bytes is None

    @property
    def num_tokens(self) -> int:
        """The number of tokens so far that began in the thinking."""
        return self._num_tokens + (self._num_head_tokens if self._format.head else 0)

    @property
    def rest(self) -> bytes:
        """The bytes that would end the thinking now."""
        return self._end.rest

    def answer_in(self, text: bytes) -> bytes:
        """Return the bytes of the answer that `text` would add to the thinking."""
        length = copy.copy(self._end).push(text)
        return b"" if length is None else text[length:]

    def num_thinking_bytes(self, start: int, end: int) -> int:
        """Return how many of the bytes from `start` to `end`, which are final, are thinking."""
        if self.num_bytes is None and (self._head is None or self._format.head):
            return end - start
        return max(0, min(end, self.num_bytes or 0) - start)

    def push(self, text: bytes) -> bytes:
        """Add the next token's bytes; return the bytes of the answer among them and the undecided ones before."""
        if self._head is None:
            self._num_tokens += 1
        else:
            self._num_head_tokens += 1
        while True:
            if self._head is None:
                length = self._end.push(text)
                if length is None:
                    self._num_bytes += len(text)
                    self.num_held = self._end.num_matched
                    return b""
                self._num_bytes += length
                text, self.num_held = text[length:], 0
                if not self._format.head:
                    self.num_bytes = self._num_bytes
                    return text
                self._head, self._end = b"", _StopMatcher(self._format.end.encode())
            self._head += text
            if (sizes := self._decided(self._head)) is None:
                self.num_held = len(self._head)
                return b""
            is_thinking, num_thinking, num_head = sizes
            text, self._head, self.num_held = self._head[num_head:], None, 0
            self._num_bytes += num_thinking
            if num_thinking:
                self._num_tokens += self._num_head_tokens
            self._num_head_tokens = 0
            if not is_thinking:
                self.num_bytes = self._num_bytes
                return text

    def _decided(self, head: bytes) -> tuple[bool, int, int] | None:
        """Return whether a text begins thinking, the bytes of its head that are thinking, and all its bytes.

        None: the text is too short to know.
        """
        if self._format.head:
            text = head.decode("latin-1")  # a character for each byte
            if found := head_at(text):
                return found.is_thinking, 0 if found.function else found.size, found.size
            return None if may_become_head(text) else (False, 0, 0)
        marker = head.lstrip()
        if self._begin.startswith(marker) and marker != self._begin:
            return None
        size = len(head) - len(marker) + len(self._begin) if marker.startswith(self._begin) else 0
        return bool(size), size, size


class _StopMatcher:
    """Finds one stop sequence byte by byte, by the algorithm of Knuth, Morris and Pratt.

    The table grows with the longest match so far, so a long stop sequence costs nothing in advance.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self.num_bytes = len(stop)
        self._borders = [0, 0]  # table of KMP: the length of the border of each prefix
        self.num_matched = 0  # bytes at the end of the text that begin the stop sequence without completing it

    @property
    def rest(self) -> bytes:
        """The bytes that would complete it now."""
        return self._stop[self.num_matched :]

    def push(self, text: bytes) -> int | None:
        """Add the next bytes of the text; return the number of them that first complete it, if they do."""
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
        """Add the border of the next longer prefix."""
        stop, borders, last = self._stop, self._borders, len(self._borders) - 1
        border = borders[last]
        while border and stop[border] != stop[last]:
            border = borders[border]
        borders.append(border + (stop[border] == stop[last]))
