"""What the tool call parser finds in a whole answer, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, TextDelta
from frontend.output_parser.messages import output_parser


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a whole answer."""

    name: str
    arguments: str
    is_complete: bool  # false: cut, or broken behind its arguments


def parse_tool_calls(
    format_name: str,
    text: str,
    *,
    is_cut: bool = False,
    piece_size: int = 0,
    schemas: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[str, list[ToolCall]]:
    """Return content and calls of a whole answer, which comes in pieces of a number of characters; 0: as a whole."""
    parser = output_parser(format_name, schemas=schemas)
    pieces = [text[start : start + piece_size] for start in range(0, len(text), piece_size)] if piece_size else [text]
    content, calls = "", []
    for event in [*(event for piece in pieces for event in parser.push(piece)), *parser.finish(is_cut=is_cut)]:
        match event:
            case TextDelta(delta):
                content += delta
            case CallBegin(_, name):
                calls.append(ToolCall(name, "", False))
            case ArgumentsDelta(index, delta):
                calls[index] = ToolCall(calls[index].name, calls[index].arguments + delta, False)
            case CallEnd(index):
                calls[index] = ToolCall(calls[index].name, calls[index].arguments, True)
    return content, calls
