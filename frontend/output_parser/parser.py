"""Splits a completion into thinking, text and tool calls while it streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from frontend.output_parser.arguments import ArgumentsReader, Ending, InputReader, ObjectReader, StringReader
from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, OutputDelta, ReasoningDelta, TextDelta
from frontend.output_parser.notation_readers import LiteralReader, MarkedReader
from frontend.output_parser.syntax import SYNTAXES, WHITE, Form
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.reasoning_formats import ReasoningFormat

_PIECE_SIZE = 4096  # the work on a piece may grow faster than its size


class OutputParser:
    """Finds the thinking and the calls in one completion; the borders of chunks make no difference.

    The engine marks the thinking. Other text is content, unchanged. It waits only while it can still become a call.
    White space around thinking and calls is dropped.

    Args:
        tool_format: a name in `model_repository.tool_formats`; empty: there are no calls.
        reasoning_format: None: there is no thinking.
        schemas: JSON schemas of arguments, by the name of the tool.
        custom_names: tools whose arguments are a text, `{"input": "..."}`, which is decoded.
    """

    def __init__(
        self,
        tool_format: str,
        reasoning_format: ReasoningFormat | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        custom_names: Collection[str] = (),
    ) -> None:
        self._schemas = schemas or {}
        self._custom_names = custom_names
        self._input: InputReader | None = None  # of the present call; None: not of a custom tool
        self._reasoning_format = reasoning_format
        self._has_reasoning = False
        self._reasoning_white = ""  # white space behind the reasoning so far
        self._is_behind_thinking = False  # without text of the answer so far
        self._syntax = SYNTAXES[tool_format]
        self._has_markers = self._syntax.markers is not None  # without markers no call can follow content
        self._buffer = ""
        self._next_size = 0  # of the buffer, when it is read again
        self._white = ""  # white space before the buffer; content unless a call follows
        self._arguments: ArgumentsReader = ObjectReader("")
        self._deltas: list[OutputDelta] = []
        self._num_calls = self._num_ended = 0
        self._step = self._read_head if self._syntax.heads and not self._has_markers else self._read_content

    @property
    def has_called(self) -> bool:
        """Whether there were calls, all of them complete. A client must not run a call that was cut."""
        return 0 < self._num_calls == self._num_ended

    def plain_part(self, chunk: GenerationChunk) -> str | None:
        """Return the part of the answer that a chunk's text extends unchanged, without tools; None: `read` decides."""
        if chunk.is_text:
            return None if self._is_behind_thinking else "content"
        is_inside = chunk.is_thinking and self._has_reasoning and not self._reasoning_white
        is_last = self._reasoning_format is not None and chunk.text.endswith(self._reasoning_format.end)
        return "reasoning" if is_inside and not is_last and chunk.text[-1] not in WHITE else None

    def read(self, chunk: GenerationChunk) -> list[OutputDelta]:
        """Add the next chunk; return the deltas that are certain, after the last chunk all."""
        deltas = self.push(self._answer_in(chunk))
        if chunk.finish_reason is not None:
            deltas += self.finish(is_cut=chunk.finish_reason is FinishReason.LENGTH)
        return deltas

    def push(self, text: str) -> list[OutputDelta]:
        """Add the next piece of the answer; return the deltas that are certain."""
        # A step may read the whole buffer, so the buffer stays small.
        for start in range(0, len(text), _PIECE_SIZE):
            self._buffer += text[start : start + _PIECE_SIZE]
            if len(self._buffer) >= self._next_size:
                self._read_buffer()
        return self._pop_deltas()

    def finish(self, *, is_cut: bool = False) -> list[OutputDelta]:
        """Return the remaining deltas at the answer's end. An open call gets no end.

        Args:
            is_cut: the answer ended by length. The beginning of a call is then dropped, but a single character is
                content: it is more likely text.
        """
        self._read_buffer()
        is_lost = is_cut and len(self._buffer) > 1
        is_head = self._step in (self._read_head, self._read_next)
        if self._step == self._read_content or (is_head and not is_lost):
            self._add_text(self._white + self._buffer)
        elif self._step == self._read_arguments and self._syntax.notation is None:
            self._add_arguments(self._buffer)
        self._buffer = self._white = ""
        return self._pop_deltas()

    def _read_buffer(self) -> None:
        while self._buffer and self._step():
            pass
        # A long rest is read again once it has grown by an eighth: with each token this would take seconds in all.
        self._next_size = len(self._buffer) * 9 // 8 if len(self._buffer) > _PIECE_SIZE else 0

    def _answer_in(self, chunk: GenerationChunk) -> str:
        """Read the thinking of a chunk, and return its other text."""
        text = chunk.text
        if chunk.num_thinking_chars:
            self._read_thinking(text[: chunk.num_thinking_chars])
            text = text[chunk.num_thinking_chars :]
        if self._is_behind_thinking:
            text = text.lstrip(WHITE)
            self._is_behind_thinking = not text
        return text

    def _read_thinking(self, text: str) -> None:
        assert self._reasoning_format is not None, "the engine marks thinking of a format only"
        if not self._has_reasoning:
            text = text.lstrip(WHITE).removeprefix(self._reasoning_format.begin).lstrip(WHITE)
        text = text.removesuffix(self._reasoning_format.end)
        if certain := text.rstrip(WHITE):
            self._add_text(self._reasoning_white + certain, ReasoningDelta)
            self._has_reasoning, self._reasoning_white = True, ""
        self._reasoning_white += text[len(certain) :]
        self._is_behind_thinking = True

    # A step reads from the buffer and returns True, or returns False if it needs more text.

    def _read_content(self) -> bool:
        start = self._syntax.marker_start(self._buffer)
        text, self._buffer = self._buffer[:start], self._buffer[start:]
        certain = text.rstrip(WHITE) if self._has_markers else text
        if certain:
            self._add_text(self._white + certain)
            self._white = ""
        self._white += text[len(certain) :]
        if self._buffer:
            self._step = self._read_head
        return bool(self._buffer)

    def _read_head(self) -> bool:
        # Without a call the marker's first character is content; the search continues after it.
        return self._read_call(self._syntax.heads, num_rejected=1)

    def _read_next(self) -> bool:
        return self._read_call(self._syntax.next_heads, num_rejected=0)

    def _read_call(self, heads: Sequence[Form], num_rejected: int) -> bool:
        for head in heads:
            if found := head.match(self._buffer):
                self._begin_call(found["name"])
                self._buffer, self._white = self._buffer[found.end() :], ""
                self._arguments = self._reader(found["name"])
                self._step = self._read_arguments
                return True
        if any(head.is_begun(self._buffer) for head in heads):
            return False
        self._add_text(self._white + self._buffer[:num_rejected])
        self._buffer, self._white = self._buffer[num_rejected:], ""
        self._step = self._read_content
        return True

    def _begin_call(self, name: str) -> None:
        is_custom = name in self._custom_names
        self._input = InputReader() if is_custom else None
        self._deltas.append(CallBegin(self._num_calls, name, is_custom))
        self._num_calls += 1

    def _reader(self, name: str) -> ArgumentsReader:
        notation = self._syntax.notation
        if notation is None:
            return StringReader() if self._buffer[0] == '"' else ObjectReader(self._syntax.end_marker)
        return LiteralReader(notation) if notation.quote else MarkedReader(notation, self._schemas.get(name, {}))

    def _read_arguments(self) -> bool:
        piece, size, ending = self._arguments.read(self._buffer)
        self._add_arguments(piece)
        self._buffer = self._buffer[size:]
        if ending is Ending.MARKER:
            self._end_call_at_marker()
        elif ending is Ending.CLOSED and self._syntax.tails:
            self._step = self._read_tail
        elif ending is Ending.CLOSED:
            self._end_call()
        return ending is not None

    def _read_tail(self) -> bool:
        for tail in self._syntax.tails:
            if found := tail.match(self._buffer):
                self._buffer = self._buffer[found.end() :]
                self._end_call()
                return True
        if any(tail.is_begun(self._buffer) for tail in self._syntax.tails):
            return False
        if self._buffer.lstrip(WHITE).startswith(","):
            self._arguments = ObjectReader(self._syntax.end_marker, depth=1)
            self._step = self._read_rest
        else:
            self._step = self._read_content
        return True

    def _read_rest(self) -> bool:
        _, size, ending = self._arguments.read(self._buffer)
        self._buffer = self._buffer[size:]
        if ending is Ending.MARKER:
            self._end_call_at_marker()
        elif ending is Ending.CLOSED:
            self._end_call()
        return ending is not None

    def _read_between(self) -> bool:
        self._buffer = self._buffer.lstrip(WHITE)
        for closing in self._syntax.closings:
            if found := closing.match(self._buffer):
                self._buffer = self._buffer[found.end() :]
                return True
        if not self._buffer or any(closing.is_begun(self._buffer) for closing in self._syntax.closings):
            return False
        self._step = self._read_next
        return True

    def _end_call_at_marker(self) -> None:
        self._buffer = self._buffer[len(self._syntax.end_marker) :]
        self._end_call()

    def _end_call(self) -> None:
        self._deltas.append(CallEnd(self._num_calls - 1))
        self._num_ended += 1
        self._step = self._read_between

    def _add_text(self, text: str, kind: type[TextDelta | ReasoningDelta] = TextDelta) -> None:
        if self._deltas and isinstance(last := self._deltas[-1], kind):
            self._deltas[-1] = kind(last.text + text)
        elif text:
            self._deltas.append(kind(text))

    def _add_arguments(self, text: str) -> None:
        if self._input is not None:
            text = self._input.push(text)
        if text:
            self._deltas.append(ArgumentsDelta(self._num_calls - 1, text, self._input is not None))

    def _pop_deltas(self) -> list[OutputDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas
