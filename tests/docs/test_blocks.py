"""Each block of commands is run by a test, or says why not; each `conch` in it is a command with these options."""

from __future__ import annotations

import shlex

import pytest

from frontend.settings import SettingsError
from tests.docs.options import parse
from tests.docs.pages import PAGES, ROOT, Block, blocks
from tests.integration.test_shown_commands import OUTPUTS, run_blocks

LANGUAGES = ("ini", "json", "python", "sh", "text", "toml", "yaml")
COMMANDS = ("sh", "ini")  # ini: a unit of systemd
OPERATORS = ("|", "&&", ";", "<", ">", "||", "&")


def shown(page: str) -> list[Block]:
    """Return a page's blocks of commands."""
    return [block for block in blocks(page) if block.language in COMMANDS]


@pytest.mark.parametrize("page", PAGES)
def test_each_block_has_a_language_and_a_mark_names_tests_that_exist(page: str) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.place
        if block.mark == "tested":
            assert all((ROOT / name).is_file() for name in block.reason.split()), block.place


def test_the_blocks_without_a_mark_are_those_that_a_test_runs() -> None:
    found = {(page, language) for page in PAGES for language in ("sh", "python") if run_blocks(page, language)}
    assert found == OUTPUTS.keys()


@pytest.mark.parametrize("page", PAGES)
def test_each_shown_conch_command_can_be_parsed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in shown(page):
        for words in conch_commands(block):
            try:
                parse(words)
            except (SystemExit, SettingsError) as exc:
                raise AssertionError(
                    f"{block.place}: conch {shlex.join(words)}: {exc} {capsys.readouterr().err}"
                ) from exc


def conch_commands(block: Block) -> list[list[str]]:
    """Return the words behind each `conch` of a block."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = _words(lexer)
        for start, word in enumerate(words):
            if word == "conch" or word.endswith("bin/conch"):
                rest = words[start + 1 :]
                end = next((i for i, each in enumerate(rest) if each in OPERATORS or each == "--"), len(rest))
                if rest[:end]:
                    found.append(rest[:end])
    return found


def _words(lexer: shlex.shlex) -> list[str]:
    try:
        return list(lexer)
    except ValueError:  # a quotation over several lines, as in the body of curl
        return []
