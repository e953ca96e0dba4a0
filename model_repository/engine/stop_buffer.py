"""Holds back tokens until their text is final, and removes stop sequences from the text."""

from __future__ import annotations

import codecs
import functools
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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

    Stop sequences are looked for in the answer only, and each within the text between two thoughts.

    Args:
        stops: stop sequences, not empty.
        include_stop: the text ends with the stop sequence, instead of before it.
        min_tokens: the number of first tokens that complete no stop sequence.
        border: finds the thinking; None: the model does not think.
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
        self._answer_end = 0  # bytes up to the end of the answer so far
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
        pieces, num_held = [(begin, token_bytes)], 0
        if self._border is not None:
            pieces, num_held = self._border.push(token_bytes), self._border.num_held
            self._border = None if self._border.is_over else self._border
        if is_boundary and not (self._stops or self._open or self._buffered or num_held):  # almost every token
            return [token_id]
        self._buffered.append(_BufferedToken(token_id, begin, self._num_bytes, is_boundary))
        match = self._find_stop(pieces)
        if self._num_exempt:
            self._num_exempt -= 1
        elif match is not None:
            end, start, self.matched_stop = match
            return self._cut_at(end if self._include_stop else start)
        return self._pop_final(num_held)

    def finish(self) -> list[int]:
        """Return the remaining ids: generation ended without a stop sequence."""
        return [item.token_id for item in self._pop_all()]

    def _find_stop(self, pieces: Sequence[tuple[int, bytes]]) -> tuple[int, int, int] | None:
        """Return end, start and index of the first complete stop sequence in pieces of the answer with their places."""
        matches: list[tuple[int, int, int]] = []
        for begin, piece in pieces if self._stops else ():
            if begin != self._answer_end:  # there is thinking between
                self._forget_beginnings()
            self._answer_end = begin + len(piece)
            for index, stop in enumerate(self._stops):
                length = stop.push(piece)
                if length is not None:
                    matches.append((begin + length, begin + length - stop.num_bytes, index))
        if self._border is not None and self._border.is_thinking:
            self._forget_beginnings()
        return min(matches) if matches else None

    def _forget_beginnings(self) -> None:
        for stop in self._stops:
            stop.num_matched = 0

    def _cut_at(self, limit: int) -> list[int]:
        """Return the tokens that begin before the text's end and drop the rest."""
        final = [item for item in self._pop_all() if item.begin < limit]
        if final:
            self.num_cut_bytes = max(0, final[-1].end - limit)
        return [item.token_id for item in final]

    def _pop_final(self, num_held: int) -> list[int]:
        """Return whole characters before the first possible beginning of a stop sequence.

        Args:
            num_held: the number of last bytes that may begin a marker.
        """
        # The beginnings of stop sequences end before these bytes.
        limit = self._num_bytes - num_held - max([stop.num_matched for stop in self._stops], default=0)
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


def border_of(thinking: Thinking, *, is_single: bool) -> ThinkingBorder:
    """Return what finds the thinking of a completion; see ThinkingBorder."""
    return MessageBorder(thinking) if thinking.format.head else ThinkingBorder(thinking, is_single=is_single)


class ThinkingBorder:
    """Finds the borders between thinking and answer in the bytes of a completion.

    The completion begins with thinking if its prompt opened it. A begin marker in the answer opens it, also later; the
    end marker closes it, and belongs to the thinking even where none is open. White space before the first marker does
    too. Where the vocabulary has the markers as tokens, the same bytes in other tokens are text.

    Args:
        thinking: without heads of messages.
        is_single: only the beginning of the completion may be thinking. A structured output needs it: its texts may
            contain markers.
    """

    def __init__(self, thinking: Thinking, *, is_single: bool = False) -> None:
        begin, self._end = thinking.format.begin.encode(), thinking.format.end.encode()
        self._tokens = (thinking.format.begin_token.encode(), self._end) if thinking.has_tokens else ()
        self._first_byte = self._end[0]  # of both markers
        self._in_thinking = _marker_pattern(self._end)
        self._in_answer = _marker_pattern(begin) if is_single else _marker_pattern(begin, self._end)
        self._is_single = is_single
        self.is_thinking = self._was_thinking = thinking.is_open
        self._is_start = not thinking.is_open  # the answer has white space at most
        self._num_bytes = 0
        self._undecided = b""  # last bytes that may begin a marker
        self._borders: deque[int] = deque()  # that `next_spans` has not passed
        self._num_passed = 0  # bytes
        self._num_tokens = 0  # of the thinking
        self._open_tokens: deque[int] = deque()  # the beginnings of those that are undecided

    @property
    def is_over(self) -> bool:
        """Whether the rest of the completion is answer."""
        return self._is_single and not self._is_start and not self.is_thinking

    @property
    def num_tokens(self) -> int:
        """The number of tokens so far that began in the thinking."""
        return self._num_tokens + (len(self._open_tokens) if self.is_thinking else 0)

    @property
    def num_held(self) -> int:
        """The number of last bytes that may begin a marker."""
        return len(self._undecided)

    @property
    def rest(self) -> bytes:
        """The bytes that would end the thinking now."""
        return self._end[len(self._undecided) :]

    def answer_in(self, text: bytes) -> bytes:
        """Return the bytes of the answer that the next token would add to the thinking."""
        return b"" if self._tokens else (self._undecided + text).partition(self._end)[2]

    def next_spans(self, pieces: Iterable[bytes]) -> tuple[int, ...]:
        """Return the sizes of thinking and of answer, in turns, in the next tokens of the text; empty: answer.

        An odd number says that the thinking goes on.
        """
        end = self._num_passed + sum(map(len, pieces))
        sizes = [] if self._was_thinking else [0]
        while self._borders and (self._borders[0] < end or (self._was_thinking and self._borders[0] == end)):
            sizes.append(self._borders[0] - self._num_passed)
            self._num_passed, self._was_thinking = self._borders.popleft(), not self._was_thinking
        sizes.append(end - self._num_passed)
        self._num_passed = end
        return () if sizes[0] == 0 and len(sizes) <= 2 else tuple(sizes)

    def push(self, text: bytes) -> list[tuple[int, bytes]]:
        """Add the next token's bytes; return the pieces of the answer that are certain now, each with its place."""
        self._open_tokens.append(self._num_bytes)
        self._num_bytes += len(text)
        may_have_marker = text in self._tokens if self._tokens else self._first_byte in text
        if not (self._undecided or self._is_start or may_have_marker):  # almost every token
            self._count_tokens(self._num_bytes)
            return [] if self.is_thinking else [(self._num_bytes - len(text), text)]
        data = self._undecided + text
        seen = data if may_have_marker else self._undecided + text.replace(self._end[:1], b"\0")
        pieces: list[tuple[int, bytes]] = []
        while True:
            place = self._num_bytes - len(data)
            found = None if self.is_over else (self._in_thinking if self.is_thinking else self._in_answer).search(seen)
            start = len(data) if found is None else found.start()
            if self._is_start and not data[:start].strip():
                start = 0
            if start and not self.is_thinking:
                pieces.append((place, data[:start]))
                self._is_start = False
            if found is None or not found["marker"]:
                break
            if not self.is_thinking:
                self._cross(place + start)
            if found["marker"] == self._end:
                self._cross(place + found.end())
            self._is_start = False
            data, seen = data[found.end() :], seen[found.end() :]
        self._undecided = data[start:]
        self._count_tokens(place + start)
        return pieces

    def _cross(self, border: int) -> None:
        self._count_tokens(border)
        self._borders.append(border)
        self.is_thinking = not self.is_thinking

    def _count_tokens(self, end: int) -> None:
        """Count the tokens up to a place, all of them thinking or all of them answer."""
        while self._open_tokens and self._open_tokens[0] < end:
            self._open_tokens.popleft()
            self._num_tokens += self.is_thinking


class MessageBorder(ThinkingBorder):
    """Finds the end of the thinking where messages have heads: the first message of another kind.

    The head of a call belongs to the answer, any other head to the thinking.
    """

    def __init__(self, thinking: Thinking) -> None:
        super().__init__(thinking, is_single=True)
        self._was_thinking = self._is_start = True  # up to the answer

    @property
    def num_tokens(self) -> int:
        """See ThinkingBorder; those of an unfinished head are thinking."""
        return self._num_tokens + (0 if self.is_over else len(self._open_tokens))

    def push(self, text: bytes) -> list[tuple[int, bytes]]:
        """See ThinkingBorder."""
        self._open_tokens.append(self._num_bytes)
        self._num_bytes += len(text)
        if self.is_thinking and not self._undecided and self._first_byte not in text:  # almost every token
            return []
        data = self._undecided + text
        while True:
            if self.is_thinking:  # in a message
                found = self._in_thinking.search(data)
                if found is None or not found["marker"]:
                    self._undecided = b"" if found is None else found.group()
                    return []
                data, self.is_thinking = data[found.end() :], False
            text_of_head = data.decode("latin-1")  # a character for each byte
            head = head_at(text_of_head)
            if head is None and may_become_head(text_of_head):
                self._undecided = data
                return []
            self.is_thinking = True  # as far as the head goes
            place = self._num_bytes - len(data)
            data = data[0 if head is None else head.size :]
            if head is None or not head.is_thinking:
                self._cross(place if head is None or head.function else self._num_bytes - len(data))
                self._is_start, self._undecided = False, b""
                return [(self._num_bytes - len(data), data)]


@functools.lru_cache
def _marker_pattern(*markers: bytes) -> re.Pattern[bytes]:
    """Return the pattern of markers, group `marker`, and of their beginnings at the end of a text."""
    beginnings = (marker[:size] for marker in markers for size in range(len(marker) - 1, 0, -1))
    whole, begun = (b"|".join(map(re.escape, texts)) for texts in (markers, beginnings))
    return re.compile(rb"(?P<marker>%b)|(?:%b)\Z" % (whole, begun))


class _StopMatcher:
    """Finds one stop sequence byte by byte, by the algorithm of Knuth, Morris and Pratt.

    The table grows with the longest match so far, so a long stop sequence costs nothing in advance.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self.num_bytes = len(stop)
        self._borders = [0, 0]  # table of KMP: the length of the border of each prefix
        self.num_matched = 0  # bytes at the end of the text that begin the stop sequence without completing it

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
