"""A chat as a person sees it, on a terminal and off it."""

from __future__ import annotations

import io
import readline
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.cli.chat import chat
from frontend.cli.chat_client import ChatClient, Kind, Piece
from frontend.cli.typed_lines import History


class Server(ChatClient):
    """Answers each question with the same pieces."""

    def __init__(self, *pieces: Piece) -> None:
        super().__init__("http://server")
        self.asked: list[str] = []
        self._pieces = pieces

    def models(self, model: str = "") -> dict[str, int]:
        return {"m": 0}

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        self.asked.append(body["messages"][-1]["content"])
        yield from self._pieces


class Terminal(io.StringIO):
    """Keeps what is written."""

    def isatty(self) -> bool:
        return True


def typing(*lines: str) -> Callable[[str], str]:
    """Return a function that reads these lines, and then the end of the input."""
    left = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


ANSWER = Server(Piece("hm\n", Kind.THINKING), Piece("**a**"), Piece("\x1b]52;c;AA\x07 b"))


@pytest.mark.parametrize(
    ("out", "is_plain", "shown"),
    [
        (io.StringIO(), False, "**a**\x1b]52;c;AA\x07 b\n"),
        (Terminal(), True, "\x1b[2mhm\n\x1b[0m\n**a**]52;c;AA b\n"),
    ],
)
def test_a_terminal_shows_the_thinking_and_takes_no_orders_from_the_model(
    out: io.StringIO, is_plain: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert chat(ANSWER, "", out, io.StringIO(), question="q", is_interactive=False, is_plain=is_plain) == 0
    assert out.getvalue() == shown


def test_a_terminal_shows_markdown_as_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    chat(ANSWER, "", out, io.StringIO(), question="q")
    assert "\x1b[1ma\x1b[0m" in out.getvalue() and "**" not in out.getvalue()


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (['"""one', "", 'two"""', "three"], ["one\n\ntwo", "three"]),
        (["one \\", "two"], ["one \ntwo"]),
        (['"""/clear"""'], ["/clear"]),
        ([" /clear"], [" /clear"]),
        (['print("""a"""', "b"], ['print("""a"""', "b"]),
        (["", "  ", "one"], ["one"]),
        (["/exit", "one"], []),
        (["/nonsense", '/system """a', 'b"""'], []),
        (["// pasted\nint x;", "/system pasted\nlines", "/nonsense\n"], ["// pasted\nint x;"]),
    ],
)
def test_a_text_may_have_several_lines(lines: list[str], asked: list[str]) -> None:
    server = Server(Piece("a"))
    assert chat(server, "", io.StringIO(), io.StringIO(), typing(*lines)) == 0
    assert server.asked == asked


def test_a_system_prompt_in_ollamas_words_may_have_several_lines() -> None:
    err = io.StringIO()
    assert chat(Server(), "", io.StringIO(), err, typing('/set system """a', 'b"""', "/system")) == 0
    assert "\na\nb\n" in err.getvalue()


def test_typed_lines_are_kept_unless_the_person_ends_that(tmp_path: Path) -> None:
    readline.clear_history()
    path = tmp_path / "history"
    (tmp_path / "saved").touch()
    lines = typing('"""one', 'two"""', f"/save {tmp_path}/saved", "n", "/set nohistory", "x", "/set history", "three")
    chat(Server(Piece("a")), "", io.StringIO(), io.StringIO(), lines, history=History(path))
    kept = ['"""one', 'two"""', f"/save {tmp_path}/saved", "/set nohistory", "three"]
    assert History(path).lines == kept


def test_a_file_that_others_may_read_meanwhile_gets_no_more_lines(tmp_path: Path) -> None:
    path, err = tmp_path / "history", io.StringIO()
    lines = typing("one", "two", "three")

    def read(prompt: str) -> str:
        line = lines(prompt)
        path.chmod(0o600 if line == "one" else 0o644)
        return line

    server = Server(Piece("a"))
    chat(server, "", io.StringIO(), err, read, history=History(path))
    assert server.asked == ["one", "two", "three"]
    assert err.getvalue().count(f"error: --history={path}: others may read or write the file: ") == 1
    path.chmod(0o600)
    assert History(path).lines == ["one"]


def test_each_line_of_a_script_is_a_question_or_a_command() -> None:
    server, err = Server(Piece("a")), io.StringIO()
    lines = typing('"""one', "two\\", "/clear", "/nonsense")
    assert chat(server, "", io.StringIO(), err, lines, is_interactive=False) == 1
    assert server.asked == ['"""one', "two\\"]
    assert err.getvalue().startswith("error: /nonsense: expected one of /help, ")


def test_ctrl_c_ends_a_script() -> None:
    class Interrupted(Server):
        def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
            yield Piece("a")
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            chat(Interrupted(), "", io.StringIO(), io.StringIO(), question="q", is_interactive=False)
    finally:
        signal.signal(signal.SIGINT, before)
