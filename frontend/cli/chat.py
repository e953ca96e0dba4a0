"""A conversation in the terminal with a model behind an OpenAI HTTP API."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Piece
from frontend.cli.conversation import CommandFailed, Conversation, is_command
from frontend.cli.typed_lines import History, begin_lines, keep_line
from frontend.settings import SettingsError
from frontend.terminal import Colour, print_error, write_coloured
from model_repository.system.terminal_text import STEERING, unescaped

_QUOTES = '"""'
_BEGINS_LINES = re.compile(rf"(/(?:set\s+)?\w+\s+)?{_QUOTES}")
_REMOVED = dict.fromkeys(STEERING)  # a model may be told to write them

type Write = Callable[[str], None]


def chat(
    client: ChatClient,
    model: str,
    out: TextIO,
    err: TextIO,
    read: Callable[[str], str] = input,
    *,
    question: str = "",
    is_interactive: bool = True,
    is_plain: bool = False,
    is_verbose: bool = False,
    history: History | None = None,
) -> int:
    """Talk until the end of the input, and return the exit status: 1 if an answer of a script has failed.

    Args:
        model: empty: the first one of the server.
        question: the only one; empty: questions and commands are read.
        is_interactive: a person reads and types. Then Ctrl-C ends an answer, and only Ctrl-D the conversation.
        is_plain: write Markdown without rendering it.
        is_verbose: write the figures of each answer.
        history: gets the lines that a person types, and has those of earlier conversations.
    """

    out = unescaped(out)  # a script gets an answer as the model has written it

    def note(text: str) -> None:
        err.write(f"{text}\n")
        err.flush()

    def show(pieces: Iterator[Piece]) -> bool:
        try:
            for kind, run in itertools.groupby(pieces, lambda piece: piece.kind):
                with _writer(kind, out, note, is_plain=is_plain) as write:
                    for piece in run:
                        write(piece.text.translate(_REMOVED) if out.isatty() else piece.text)
        except (ChatFailed, CommandFailed) as exc:
            print_error(exc, err)
            return False
        except KeyboardInterrupt:
            if not is_interactive:
                raise
        return True

    def typed(prompt: str) -> str:
        nonlocal history
        line = read(prompt)
        if conversation.has_history:
            try:
                keep_line(line, history)
            except SettingsError as exc:
                print_error(exc, err)
                history = None
        return line

    try:
        conversation = Conversation(client, model, is_verbose=is_verbose, read=read if is_interactive else None)
    except ChatFailed as exc:
        print_error(exc, err)
        return 1
    if question:
        return int(not show(conversation.ask(question)))
    if is_interactive:
        begin_lines(history, conversation.completions)
        note(f"{conversation.model}: Ctrl-C stops an answer, Ctrl-D ends the conversation, /help lists commands.")
    has_failed = False
    while not conversation.is_over:
        try:
            line = typed("> ") if is_interactive else read("")
            text = _whole(line, typed) if is_interactive else line
        except EOFError:
            break
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            note("\nCtrl-D ends the conversation.")
            continue
        if text.strip():
            has_failed |= not show(conversation.obey(text) if is_command(line) else conversation.ask(text))
    if is_interactive:
        note("")
    return int(has_failed and not is_interactive)


def _whole(line: str, read: Callable[[str], str]) -> str:
    """Return a text that a person has begun: until the closing quotes, or with the lines behind a backslash."""
    if begin := _BEGINS_LINES.match(line):
        line = line[begin.end() :]
        while not line.rstrip().endswith(_QUOTES):
            line += f"\n{read('... ')}"
        return f"{begin[1] or ''}{line.rstrip().removesuffix(_QUOTES)}"
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{read('... ')}"
    return line


def _writer(kind: Kind, out: TextIO, note: Write, *, is_plain: bool) -> AbstractContextManager[Write]:
    """Return what writes pieces of one kind."""
    if kind is Kind.NOTE:
        return nullcontext(note)
    if kind is Kind.THINKING and not out.isatty():
        return nullcontext(lambda text: None)
    if kind is Kind.THINKING or is_plain or not out.isatty() or not importlib.util.find_spec("rich"):
        return _plain(out, is_dim=kind is Kind.THINKING)
    from frontend.cli.markdown import markdown_on

    return markdown_on(out)


@contextmanager
def _plain(out: TextIO, *, is_dim: bool) -> Iterator[Write]:
    def write(text: str) -> None:
        if is_dim:
            write_coloured(text, Colour.DIM, out)
        else:
            out.write(text)
        out.flush()

    try:
        yield write
    finally:
        out.write("\n")
        out.flush()
