"""Splits a completion in Harmony's format: messages with heads. A head says what its message is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from frontend.output_parser.arguments import ObjectReader
from frontend.output_parser.deltas import OutputDelta, ReasoningDelta, TextDelta
from frontend.output_parser.parser import OutputParser
from frontend.output_parser.syntax import HEADLESS, WHITE
from model_repository.contract.output import GenerationChunk
from model_repository.reasoning_formats import HARMONY_TOKENS, ReasoningFormat, head_at, may_become_head
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


_DROPPED = (f"{HARMONY_TOKENS[0]}assistant", *HARMONY_TOKENS)  # from a message with an unreadable head


class MessageParser(OutputParser):
    """Finds the texts and calls of messages. An empty line joins texts of a kind.

    A message with an unreadable head is content, without markers.

    Args:
        has_tools: otherwise a call is content.
        custom_names: of custom tools.
    """

    def __init__(self, *, has_tools: bool, custom_names: Collection[str]) -> None:
        super().__init__(HARMONY.name, custom_names=custom_names)
        self._has_tools = has_tools
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta  # of the present message
        self._has_head = True  # that can be read
        self._step = self._read_next

    def plain_part(self, chunk: GenerationChunk) -> str | None:
        is_text = self._step == self._read_message and self._kind in self._begun and not self._buffer + self._white
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

    def _read_parts(self, chunk: GenerationChunk) -> list[OutputDelta]:
        return self.push(chunk.text)

    def _read_next(self) -> bool:
        """Read the end of a message, if there is one, and the head of the next message."""
        end = self._syntax.end_marker
        text = self._buffer.removeprefix(end)
        if head := head_at(text):
            self._begin_message(text[head.size :], ReasoningDelta if head.is_thinking else TextDelta)
            if head.function is not None and self._has_tools:
                self._begin_call(head.function)
                self._arguments, self._step = ObjectReader(end), self._read_arguments
            return True
        if end.startswith(self._buffer) or may_become_head(text):
            return False
        is_broken = text.startswith(HARMONY_TOKENS)
        if self._kind is ReasoningDelta or is_broken or not self._has_head:
            self._begin_message(text, TextDelta)
            self._has_head = not is_broken
            return True
        return self._reject_head()

    def _begin_message(self, text: str, kind: type[TextDelta | ReasoningDelta]) -> None:
        self._buffer, self._white = text, ""
        self._kind, self._has_head, self._step = kind, True, self._read_message
        self._begun.clear()

    def _read_message(self) -> bool:
        start = (self._syntax if self._has_head else HEADLESS).marker_start(self._buffer)
        text, self._buffer = self._buffer[:start], self._buffer[start:]
        text = text if self._kind in self._begun else text.lstrip(WHITE)
        self._add_certain(text, self._kind)
        if self._buffer:
            self._step = self._read_end
        return bool(self._buffer)

    def _read_end(self) -> bool:
        markers = (self._syntax.end_marker,) if self._has_head else _DROPPED
        if any(marker.startswith(self._buffer) and marker != self._buffer for marker in markers):
            return False
        found = next((marker for marker in markers if self._buffer.startswith(marker)), "")
        if found == self._syntax.end_marker:
            self._step = self._read_next
        elif found:
            self._buffer, self._step = self._buffer[len(found) :], self._read_message
        else:
            self._reject_head()
        return True

    def _reject_head(self) -> bool:
        self._add_text(self._white + self._buffer[:1], self._kind)
        self._buffer, self._white = self._buffer[1:], ""
        self._step = self._read_message
        return True
