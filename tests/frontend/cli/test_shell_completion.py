"""The completion of a shell. `python -m tests.frontend.cli.test_shell_completion` writes its words anew."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_engines.__main__ import _parser as parser_of_builds
from build_engines.catalog import Catalog
from build_engines.model_source import DEMO_MODELS
from frontend.__main__ import _parser
from frontend.cli.shell_completion import WORDS, script
from tests.docs.pages import ROOT
from tests.waiting import DEADLINE_S

PATH = ROOT / "frontend" / "cli" / WORDS
OF_CATALOG = ("serve", "run", "bench", "build", "pull", "plan", "show")  # commands with names of models


def words() -> str:
    """Return the words of all commands: for each the values of options, and the words of other places."""
    names = [*DEMO_MODELS, *(name for entry in Catalog.load() for name in dict.fromkeys((entry.tag, entry.model_id)))]
    found: dict[str, dict[str, list[str]]] = {}
    for parser in (_parser(), parser_of_builds()):
        [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        for name, command in commands.choices.items():
            if command.add_help:  # else the other parser has it
                found[name] = places(command, names if name in OF_CATALOG else [])
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    return f"{{\n{',\n'.join(lines)}\n}}\n"


def places(command: argparse.ArgumentParser, names: list[str]) -> dict[str, list[str]]:
    """Return the words behind each option with choices, and under the empty text those of other places."""
    others = dict.fromkeys(names)
    values: dict[str, list[str]] = {}
    for action in actions(command):
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        choices = [str(choice) for choice in action.choices or ()]
        values |= {flag: choices for flag in flags if choices}
        others |= dict.fromkeys(flags or choices)
    return values | {"": [*others]}


def actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the actions of a command, and of its own commands."""
    for action in command._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from actions(own)


def test_the_words_are_those_of_the_programs() -> None:
    assert PATH.read_text(encoding="utf-8") == words()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home" / "artifacts" / "mine-1").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.gguf").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    return tmp_path


COMPLETED = [
    ("ser", {"serve"}),
    ("chat --l", {"--lines"}),
    ("serve --triton-h", {"--triton-http-port", "--triton-hang-s"}),
    ("build demo --prec", {"--precision"}),
    ("serve mo", {"model.gguf"}),
    ("run dem", {"demo", "demo-embedder"}),
    ("plan nvidia/Llama", {"nvidia/Llama-3.1-Nemotron-70B-Instruct-HF"}),
    ("plan demo --gpu h1", {"h100"}),
    ("launch cl", {"claude"}),
    ("keys a", {"add"}),
    ("keys add --mo", {"--model"}),
    ("rm mi", {"mine-1"}),
]


@pytest.mark.parametrize(("typed", "completed"), [*COMPLETED, ("serve qwen3:8", {"8b"})])
def test_bash_completes_commands_options_values_names_and_files(typed: str, completed: set[str], home: Path) -> None:
    line = f"conch {typed}"
    split = line.replace(":", " : ").split()  # as bash does
    program = (
        f"{script('bash')}\nCOMP_WORDS=({' '.join(split)}); COMP_CWORD={len(split) - 1}; COMP_LINE='{line}'; "
        f"COMP_POINT={len(line)}; _conch; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (completed, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs the Debian package fish")
@pytest.mark.parametrize(("typed", "completed"), [*COMPLETED, ("serve qwen3:8", {"qwen3:8b"})])
def test_fish_completes_commands_options_values_names_and_files(typed: str, completed: set[str], home: Path) -> None:
    program = f"{script('fish')}\ncomplete -C 'conch {typed}'"
    done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (completed, "")


# A terminal, in which a key prints the words that zsh would offer; another key empties the line.
_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= PS2= && source $1 && source $2 && print BEG''UN"
zpty -r shell offered '*BEGUN*'
for typed in $@[3,-1]; do
    zpty -w -n shell "conch $typed"$'\C-t'
    zpty -r shell offered '*<END>*'
    print -r -- ${${${offered##*<BEGIN>}%%<END>*}//[[:space:]]##/ }
    zpty -w -n shell $'\C-u'
done
"""
_KEY = """
autoload -U compinit && compinit -u -D
compadd() { local -a offered; builtin compadd -O offered "$@"; print -lr -- $offered }
offer() { print "<BEGIN>"; _main_complete; print "<END>" }
zle -C offer complete-word offer
bindkey '^T' offer
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs the Debian package zsh")
def test_zsh_completes_commands_options_values_names_and_files(home: Path) -> None:
    """It offered nothing: the script of bash is an error in zsh."""
    (home / "key").write_text(_KEY)
    (home / "script").write_text(script("zsh"))
    cases = [*COMPLETED, ("serve qwen3:8", {"qwen3:8b"}), ("plan demo --gpu=h1", {"h100"})]
    command = ["zsh", "-f", "-o", "extended_glob", "-c", _ZSH, "zsh", str(home / "key"), str(home / "script")]
    command += [typed for typed, _ in cases]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    offered = [set(line.split()) for line in done.stdout.splitlines()]
    assert (offered, done.stderr) == ([completed for _, completed in cases], "")


if __name__ == "__main__":
    PATH.write_text(words(), encoding="utf-8")
