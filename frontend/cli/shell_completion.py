"""The command `completion`: a script with which a shell completes the commands of `conch`, their options and values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

_FLAG = re.compile(r"--[a-z][a-z-]*")
# In a help text: an option or an argument with its values, and an action of a command.
_VALUES = re.compile(r"^  (?:-\w .*, )?(--[a-z-]+ )?\{(.+?)\}", re.MULTILINE)
_ACTION = re.compile(r"^    ([a-z]+) ", re.MULTILINE)
_OF_CATALOG = ("serve", "run", "bench", "build", "pull", "plan")  # commands with names of the catalog, or of the store
_OF_STORE = ("show", "rm")
_SCRIPT = """\
_conch() {{
    local words word="${{COMP_WORDS[COMP_CWORD]}}"
    case "$COMP_CWORD:${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD - 1]}}" in
        1:*) words="{commands}" ;;
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -o filenames -F _conch conch
"""


def script(shell: str, helps: Mapping[str, str], others: Collection[str]) -> str:
    """Return the script of a shell.

    Args:
        shell: bash or zsh, which reads the same script.
        helps: the help text of each command.
        others: commands of build_engines, whose help texts come from its processes.
    """
    with ThreadPoolExecutor() as readers:
        listed = readers.submit(_output, "list", "--json")
        texts = dict(helps) | dict(zip(others, readers.map(_output, others, ["--help"] * len(others)), strict=True))
    names = {kind: [each["model_id"] or "" for each in found] for kind, found in json.loads(listed.result()).items()}
    models = {name: ["demo", "demo-embedder", *names["models"]] for name in _OF_CATALOG}
    models |= {name: names["artifacts"] for name in _OF_STORE}
    cases = "\n".join(
        f'        *:{pattern}) words="{" ".join(words)}" ;;'
        for name, text in texts.items()
        for pattern, words in _cases(name, text, models.get(name, []))
    )
    prefix = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return prefix + _SCRIPT.format(commands=" ".join(texts), cases=cases)


def _cases(command: str, text: str, models: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the words behind each option that has few values, and then those at other places of a command."""
    words = [*models, *_ACTION.findall(text), *dict.fromkeys(_FLAG.findall(text))]
    for flag, values in _VALUES.findall(text):
        if flag:
            yield f"{command}:{flag.strip()}", values.split(",")
        else:
            words += values.split(",")
    yield f"{command}:*", words


def _output(*words: str) -> str:
    command = [sys.executable, "-P", "-m", "build_engines", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
