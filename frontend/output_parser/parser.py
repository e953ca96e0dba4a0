"""Splits a completion into thinking, text and tool calls while it streams."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from frontend.output_parser.arguments import ArgumentsReader, Ending, InputReader, ObjectReader, StringReader
from frontend.output_parser.deltas import (
    ArgumentsDelta,
    CallBegin,
    CallDelta,
    CallEnd,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)
from frontend.output_parser.notation_readers import LiteralReader, MarkedReader
from frontend.output_parser.syntax import SYNTAXES, WHITE, Form
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.reasoning_formats import ReasoningFormat

MAX_HELD = 65_536  # characters of the thinking that wait
_PIECE_SIZE = 4096  # the work on a piece may grow faster than its size


class TextParser:
    """Passes on the text of a completion that has neither thinking nor calls."""

    has_called = False

    def plain_part(self, chunk: GenerationChunk) -> str | None:
        """See OutputParser."""
        return "content" if chunk.is_text else None

    def read(self, chunk: GenerationChunk) -> list[OutputDelta]:
        """See OutputParser."""
        return [TextDelta(chunk.text)] if chunk.text else []


class OutputParser:
    """Finds the thinking and the calls in one completion; the borders of chunks make no difference.

    The engine marks the thinking. Other text is content, unchanged. It waits only while it can still become a call.
    White space around thinking and calls is dropped, and an empty line joins the texts on both sides of thinking.

    Text of the thinking from the beginning of a call on waits for the end of the thinking, up to `MAX_HELD` characters.
    If the completion ends instead, and ends with calls, these are calls.

    Args:
        tool_format: a name in `model_repository.tool_formats`; empty: there are no calls.
        reasoning_format: None: there is no thinking.
        schemas: JSON schemas of arguments, by the name of the offered tool.
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
        self._tool_format = tool_format
        self._reasoning_format = reasoning_format
        self._is_thinking = False
        self._held = ""  # text of the thinking that waits
        self._is_behind_thinking = False  # without text of the answer so far
        self._is_quote = False  # the thinking is in a call: its markers are text
        self._begun: set[type] = set()  # kinds of text that go on without an empty line
        self._written: set[type] = set()  # kinds with text so far
        self._syntax = SYNTAXES[tool_format]
        self._has_markers = self._syntax.markers is not None  # without markers no call can follow content
        self._buffer = ""
        self._next_size = 0  # of the buffer, when it is read again
        self._white = ""  # white space behind the last text; dropped at the border of a call or of thinking
        self._arguments: ArgumentsReader = ObjectReader("")
        self._deltas: list[OutputDelta] = []
        self._num_calls = self._num_ended = 0
        self._step = self._read_first if self._syntax.first_heads else self._read_content

    @property
    def has_called(self) -> bool:
        """Whether there were calls, all of them complete. A client must not run a call that was cut."""
        return 0 < self._num_calls == self._num_ended

    def plain_part(self, chunk: GenerationChunk) -> str | None:
        """Return the part of the answer that a chunk's text extends unchanged, without tools; None: `read` decides."""
        if chunk.is_text and self._reasoning_format is None:
            return "content"
        if chunk.is_text:
            is_plain, part = TextDelta in self._begun and not self._white, "content"
        else:
            is_plain = chunk.is_thinking and ReasoningDelta in self._begun and not self._white + self._held
            is_plain, part = is_plain and not self._num_end_chars(chunk.text), "reasoning"
        return part if is_plain and chunk.text[-1] not in WHITE else None

    def read(self, chunk: GenerationChunk) -> list[OutputDelta]:
        """Add the next chunk; return the deltas that are certain, after the last chunk all."""
        deltas = self._read_parts(chunk)
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
        if self._is_thinking and not self._is_quote:
            self._finish_thinking(is_cut=is_cut)
        is_lost = is_cut and len(self._buffer) > 1
        is_head = self._step in (self._read_first, self._read_head, self._read_next)
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

    def _read_parts(self, chunk: GenerationChunk) -> list[OutputDelta]:
        """Read the thinking and the answer of a chunk."""
        deltas: list[OutputDelta] = []
        text = chunk.text
        for index, size in enumerate(chunk.spans or (0, len(text))):
            part, text = text[:size], text[size:]
            if index % 2:
                deltas += self._read_answer(part)
            elif part or self._is_thinking:
                self._read_thinking(part, is_closed=index + 1 < len(chunk.spans))
        return deltas + self._pop_deltas()

    def _read_answer(self, text: str) -> list[OutputDelta]:
        if self._is_behind_thinking:
            text = text.lstrip(WHITE)
            self._is_behind_thinking = not text
        return self.push(text)

    def _read_thinking(self, text: str, *, is_closed: bool) -> None:
        """Read a part of the thinking.

        Args:
            is_closed: the thinking ends with the part.
        """
        assert self._reasoning_format is not None, "the engine marks thinking of a format only"
        if not self._is_thinking:
            self._begin_thinking()
        self._is_thinking = not is_closed
        if self._is_quote:
            self._deltas = self.push(text)
            return
        text = self._held + text
        if is_closed:
            text = text.removesuffix(self._reasoning_format.end)
        if ReasoningDelta not in self._begun:
            # The model may repeat the begin marker of its prompt.
            text = re.sub(rf"\A(?:[{WHITE}]|{re.escape(self._reasoning_format.begin)})+", "", text)
            if not is_closed and self._reasoning_format.begin.startswith(text):
                self._held = text
                return
        start = len(text) if is_closed else self._syntax.marker_start(text)
        if not is_closed:  # a token across the end marker's end may wait for more
            start = min(start, len(text) - self._num_end_chars(text))
        while len(text) - start > MAX_HELD:
            start = self._syntax.marker_start(text, start + 1)
        self._add_certain(text[:start], ReasoningDelta)
        self._held = text[start:]
        self._is_behind_thinking = is_closed
        if is_closed:
            self._white = ""

    def _num_end_chars(self, text: str) -> int:
        """Return the number of last characters that may begin the end marker."""
        assert self._reasoning_format is not None, "the engine marks thinking of a format only"
        end = self._reasoning_format.end
        return next((size for size in range(len(end) - 1, 0, -1) if text.endswith(end[:size])), 0)

    def _begin_thinking(self) -> None:
        self._read_buffer()
        self._is_quote = self._step in (self._read_arguments, self._read_tail, self._read_rest)
        if self._is_quote:
            return
        if self._buffer:  # text that began like a call
            self._add_text(self._white + self._buffer)
            self._step = self._read_content
        self._buffer = self._white = ""
        self._begun.clear()

    def _finish_thinking(self, *, is_cut: bool) -> None:
        """Read the text that waits: the completion ended before the thinking."""
        start, calls = (len(self._held), []) if is_cut else self._calls_at_end(self._held)
        self._add_certain(self._held[:start], ReasoningDelta)
        self._held = self._white = ""
        self._deltas += [replace(call, index=self._num_calls + call.index) for call in calls]
        num_calls = sum(isinstance(call, CallEnd) for call in calls)
        self._num_calls, self._num_ended = self._num_calls + num_calls, self._num_ended + num_calls

    def _calls_at_end(self, text: str) -> tuple[int, list[CallDelta]]:
        """Return the start of the calls that end a text, and their deltas. They are complete."""
        parser = OutputParser(self._tool_format, None, self._schemas, self._custom_names)
        markers = self._syntax.markers.finditer(text) if self._syntax.markers else ()
        starts = [*(marker.start() for marker in markers), len(text)]
        first, calls = 0, list[CallDelta]()
        for start, end in itertools.pairwise([*starts, len(text)]):
            # A call begins at a marker. So each part, up to the next marker, ends a text or is in the calls behind it.
            deltas = parser.push(text[start:end]) if end > start else parser.finish()
            for delta in deltas:
                if not isinstance(delta, TextDelta | ReasoningDelta):
                    calls.append(delta)
                elif delta.text.strip(WHITE):
                    first, calls = start, []
            if deltas and isinstance(deltas[-1], TextDelta) and not calls:
                first = end
        num_calls = [sum(isinstance(each, kind) for each in calls) for kind in (CallBegin, CallEnd)]
        if num_calls[0] != num_calls[1] or not calls:
            return len(text), []
        offset = calls[0].index
        return first, [replace(call, index=call.index - offset) for call in calls]

    # A step reads from the buffer and returns True, or returns False if it needs more text.

    def _read_content(self) -> bool:
        start = self._syntax.marker_start(self._buffer)
        text, self._buffer = self._buffer[:start], self._buffer[start:]
        self._add_certain(text)
        if self._buffer:
            self._step = self._read_head
        return bool(self._buffer)

    def _read_first(self) -> bool:
        syntaxes = [each for each in (self._syntax, self._syntax.other) if each is not None]
        for syntax in syntaxes:
            if any(head.match(self._buffer) for head in syntax.first_heads):
                self._syntax = syntax
                break
        else:
            if any(head.is_begun(self._buffer) for syntax in syntaxes for head in syntax.first_heads):
                return False
        return self._read_call(self._syntax.first_heads, num_rejected=0)

    def _read_head(self) -> bool:
        # Without a call the marker's first character is content; the search continues after it.
        return self._read_call((*self._syntax.heads, *self._syntax.bare_heads), num_rejected=1)

    def _read_next(self) -> bool:
        return self._read_call(self._syntax.next_heads, num_rejected=0)

    def _read_call(self, heads: Sequence[Form], num_rejected: int) -> bool:
        for head in heads:
            if (found := head.match(self._buffer)) and self._may_call(head, found["name"]):
                self._begin_call(found["name"])
                self._buffer, self._white = self._buffer[found.end() :], ""
                self._arguments = self._reader(found["name"])
                self._step = self._read_arguments
                return True
        if any(head.is_begun(self._buffer) for head in heads):
            return False
        end = self._syntax.marker_start(self._buffer, num_rejected) if num_rejected else 0
        rejected, self._buffer = self._buffer[:end], self._buffer[end:]
        self._add_certain(rejected)
        self._step = self._read_head if num_rejected and self._buffer else self._read_content
        return bool(self._buffer)

    def _may_call(self, head: Form, name: str) -> bool:
        return name in self._schemas or head not in (*self._syntax.bare_heads, *self._syntax.first_heads)

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

    def _add_certain(self, text: str, kind: type[TextDelta | ReasoningDelta] = TextDelta) -> None:
        """Add text up to its last white space, which waits if something can follow that drops it."""
        certain = text.rstrip(WHITE) if self._has_markers or self._reasoning_format is not None else text
        if certain:
            self._add_text(self._white + certain, kind)
            self._white = ""
        self._white += text[len(certain) :]

    def _add_text(self, text: str, kind: type[TextDelta | ReasoningDelta] = TextDelta) -> None:
        if text and kind not in self._begun:
            text = "\n\n" + text if kind in self._written else text
            self._begun.add(kind)
            self._written.add(kind)
        if text:
            self._deltas.append(kind(text))

    def _add_arguments(self, text: str) -> None:
        if self._input is not None:
            text = self._input.push(text)
        if text:
            self._deltas.append(ArgumentsDelta(self._num_calls - 1, text, self._input is not None))

    def _pop_deltas(self) -> list[OutputDelta]:
        """Return the deltas, neighbours of a kind of text as one."""
        deltas, self._deltas = self._deltas, []
        if len(deltas) < 2:
            return deltas
        joined: list[OutputDelta] = []
        for kind, same in itertools.groupby(deltas, type):
            if issubclass(kind, TextDelta | ReasoningDelta):
                texts = [cast(TextDelta | ReasoningDelta, each).text for each in same]
                joined.append(kind("".join(texts)))
            else:
                joined += same
        return joined
