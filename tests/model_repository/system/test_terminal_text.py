"""Texts of others on a terminal."""

from __future__ import annotations

import io
import json

import pytest

from model_repository.system.terminal_text import STEERING, escaped, escaped_output, unescaped

_ALL = "".join(map(chr, sorted(STEERING)))


@pytest.mark.parametrize(
    "text", ["\x1b]52;c;AA\x07", "\x9b2J", "a\rb", "\x7f", "\u202egnp.exe", "\u2066a\u2069", "\0", "\u2028"]
)
def test_what_steers_a_terminal_is_written_as_an_escape(text: str) -> None:
    assert escaped(text).isprintable()


def test_other_texts_stay() -> None:
    text = "a\tb\nc é 猫 \U0001f600 עברית \\x1b"
    assert escaped(text) == text


def test_json_keeps_its_value() -> None:
    value = {f"\\{_ALL}": ["\\", _ALL]}
    written = escaped(json.dumps(value, ensure_ascii=False))
    assert not STEERING & set(map(ord, written))
    assert json.loads(written) == value


def test_a_stream_escapes_each_way_of_writing() -> None:
    below = io.StringIO()
    stream = escaped_output(below)
    assert stream.write("\r") == 1
    stream.writelines(["\x1b", "a\n"])
    print("\x07", file=stream, flush=True)
    assert below.getvalue() == "\\u000d\\u001ba\n\\u0007\n"
    assert unescaped(stream) is unescaped(below) is below
