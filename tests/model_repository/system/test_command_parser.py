"""The errors of both command lines: one line, with the nearest command, option or value."""

from __future__ import annotations

import pytest

from model_repository.system.command_parser import CommandParser


def parser() -> CommandParser:
    parser = CommandParser(prog="conch")
    commands = parser.add_subparsers(metavar="COMMAND")
    serve = commands.add_parser("serve")
    serve.add_argument("model", nargs="?")
    serve.add_argument("--port", type=int)
    keys = commands.add_parser("keys").add_subparsers(metavar="ACTION")
    keys.add_parser("add").add_argument("--name")
    keys.add_parser("remove")
    return parser


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("srve", "srve: no such command; did you mean serve?"),
        ("zzz", "zzz: no such command"),
        ("serve --prot 9", "--prot: no such option of serve; did you mean --port?"),
        ("serve --prot=9", "--prot: no such option of serve; did you mean --port?"),
        ("serve a b", "b: one word too many"),
        ("serve --zzz", "--zzz: no such option of serve"),
        ("serve --port x", "argument --port: x: expected a whole number"),
        ("keys ad", "argument ACTION: ad: expected one of add, remove; did you mean add?"),
        ("keys add --nam x --neme y", "--neme: no such option of keys; did you mean --name?"),
        ("", "the following arguments are required: COMMAND"),
        ("--prot", "the following arguments are required: COMMAND"),
    ],
)
def test_a_mistake_is_one_line(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {error} (--help lists the options)\n"


def test_right_words_are_parsed() -> None:
    options = parser().parse_args(["serve", "demo", "--port=9"])
    assert (options.model, options.port) == ("demo", 9)
