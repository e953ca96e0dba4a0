"""Large hostile bodies. Without bounds each costs the server far more than its sender."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.requests import COMPLETIONS

type Attack = Callable[[str], tuple[str, bytes]]  # takes a model's id, returns path and body


def _body(model: str, fields: bytes) -> bytes:
    return b'{"model":"%s",%s}' % (model.encode(), fields)


def _names(number: int) -> bytes:
    return b"{" + b",".join(b'"a%d":1' % index for index in range(number)) + b"}"


def token_ids(model: str) -> tuple[str, bytes]:
    """Return a prompt of 4.5 million token ids, in 9 MB."""
    return COMPLETIONS, _body(model, b'"prompt":[' + b"1," * 4_500_000 + b"1]")


def metadata_names(model: str) -> tuple[str, bytes]:
    """Return metadata of 400,000 names."""
    return COMPLETIONS, _body(model, b'"prompt":"a","metadata":' + _names(400_000))


def unknown_names(model: str) -> tuple[str, bytes]:
    """Return an unknown field of 700,000 names."""
    return COMPLETIONS, _body(model, b'"prompt":"a","nobody":' + _names(700_000))


def empty_texts(model: str) -> tuple[str, bytes]:
    """Return three million messages."""
    return "/v1/chat/completions", _body(model, b'"messages":[' + b'"",' * 3_000_000 + b'""]')


def spaces(model: str) -> tuple[str, bytes]:
    """Return 10 MB of spaces around a short prompt."""
    return COMPLETIONS, _body(model, b'"prompt":"a","max_tokens":8' + b" " * 10_000_000)


def wide_text(model: str) -> tuple[str, bytes]:
    """Return a prompt of 9 MB with one character that makes Python use four bytes for each."""
    return COMPLETIONS, _body(model, b'"prompt":"' + b"a" * 9_000_000 + "\U0001f600".encode() + b'"')


def combining_marks(model: str) -> tuple[str, bytes]:
    """Return a text of 800,000 combining marks to tokenize."""
    return "/tokenize", _body(model, b'"prompt":"' + "\u0323\u0301".encode() * 400_000 + b'"')


def ids_to_detokenize(model: str) -> tuple[str, bytes]:
    """Return three million token ids to detokenize."""
    return "/detokenize", _body(model, b'"tokens":[' + b"1," * 3_000_000 + b"1]")


CROWDS: tuple[Attack, ...] = (token_ids, metadata_names, unknown_names, empty_texts, ids_to_detokenize)
ATTACKS: tuple[Attack, ...] = (token_ids, metadata_names, unknown_names, spaces, wide_text, combining_marks)
