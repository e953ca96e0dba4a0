"""Splits a completion in Harmony's format: messages with heads. A head says what its message is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from frontend.output_parser.arguments import ObjectReader
from frontend.output_parser.deltas import OutputDelta, ReasoningDelta, TextDelta
from frontend.output_parser.parser import OutputParser
from frontend.output_parser.syntax import WHITE
from model_repository.contract.output import GenerationChunk
from model_repository.reasoning_formats import ReasoningFormat, head_at, may_become_head
from model_repository.tool_formats import HARMONY


def output_parser(
    tool_format: str,
    reasoning_format: ReasoningFormat | None = None,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
    custom_names: Collection[str] = (),
) -> OutputParser:
    """Return the parser of a completion; see OutputParser for the arguments."""
    if tool_format == HARMONY.name or (reasoning_format is not None and reasoning_format.head):
        return MessageParser(has_tools=tool_format != "", custom_names=custom_names)
    return OutputParser(tool_format, reasoning_format, schemas, custom_names)


class MessageParser(OutputParser):
    """Finds the texts and calls of messages. An empty line joins texts of a kind.

    Args:
        has_tools: otherwise a call is content.
        custom_names: of custom tools.
    """

    def __init__(self, *, has_tools: bool, custom_names: Collection[str]) -> None:
        super().__init__(HARMONY.name, custom_names=custom_names)
        self._has_tools = has_tools
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta  # of the present message
        self._is_begun = False  # the present message has text
        self._written: set[type] = set()  # kinds with text so far
        self._step = self._read_next

    def plain_part(self, chunk: GenerationChunk) -> str | None:
        is_text = self._step == self._read_message and self._is_begun and not self._buffer + self._white
        is_plain = is_text and (chunk.is_text or chunk.is_thinking) and "<" not in chunk.text
        part = "reasoning" if self._kind is ReasoningDelta else "content"
        return part if is_plain and chunk.text[-1] not in WHITE else None

    def finish(self, *, is_cut: bool = False) -> list[OutputDelta]:
        self._read_buffer()
        if self._step == self._read_arguments:
            return super().finish(is_cut=is_cut)
        is_head = self._step != self._read_message and ((is_cut and len(self._buffer) > 1) or "|>" in self._buffer)
        text = "" if is_head else self._white + self._buffer
        self._add_text(text.rstrip(WHITE) if self._kind is ReasoningDelta else text, self._kind)
        self._buffer = self._white = ""
        return self._pop_deltas()

    def _answer_in(self, chunk: GenerationChunk) -> str:
        return chunk.text

    def _read_next(self) -> bool:
        """Read the end of a message, if there is one, and the head of the next message."""
        end = self._syntax.end_marker
        text = self._buffer.removeprefix(end)
        if head := head_at(text):
            self._buffer, self._white = text[head.size :], ""
            self._kind, self._is_begun = ReasoningDelta if head.is_thinking else TextDelta, False
            if head.function is not None and self._has_tools:
                self._begin_call(head.function)
                self._arguments, self._step = ObjectReader(end), self._read_arguments
            else:
                self._step = self._read_message
            return True
        if end.startswith(self._buffer) or may_become_head(text):
            return False
        if self._kind is ReasoningDelta:  # it ended, without a head of the next message
            self._buffer, self._white = text, ""
            self._kind, self._is_begun, self._step = TextDelta, False, self._read_message
            return True
        return self._reject_head()

    def _read_message(self) -> bool:
        start = self._syntax.marker_start(self._buffer)
        text, self._buffer = self._buffer[:start], self._buffer[start:]
        text = text if self._is_begun else text.lstrip(WHITE)
        if certain := text.rstrip(WHITE):
            self._add_message_text(self._white + certain)
            self._white = ""
        self._white += text[len(certain) :]
        if self._buffer:
            self._step = self._read_end
        return bool(self._buffer)

    def _read_end(self) -> bool:
        end = self._syntax.end_marker
        if end.startswith(self._buffer) and self._buffer != end:
            return False
        self._step = self._read_next if self._buffer.startswith(end) else self._reject_head
        return True

    def _reject_head(self) -> bool:
        self._add_message_text(self._white + self._buffer[:1])
        self._buffer, self._white = self._buffer[1:], ""
        self._step = self._read_message
        return True

    def _add_message_text(self, text: str) -> None:
        if not self._is_begun:
            text = "\n\n" + text if self._kind in self._written else text
            self._written.add(self._kind)
            self._is_begun = True
        self._add_text(text, self._kind)
