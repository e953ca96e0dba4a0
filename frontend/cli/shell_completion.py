"""The command `completion`: a script with which a shell completes the commands and options of `conch`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

_FLAG = re.compile(r"--[a-z][a-z-]*")
_SCRIPT = """\
_conch() {{
    local words word="${{COMP_WORDS[COMP_CWORD]}}"
    case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
        1:*) words="{commands}" ;;
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -o filenames -F _conch conch
"""


def script(shell: str, helps: Mapping[str, str], others: Iterable[str]) -> str:
    """Return the script of a shell.

    Args:
        shell: bash or zsh, which reads the same script.
        helps: the help text of each command.
        others: commands of build_engines, whose help texts come from its processes.
    """
    with ThreadPoolExecutor() as readers:
        texts = dict(helps) | dict(zip(others, readers.map(_help, others), strict=True))
    flags = {name: " ".join(dict.fromkeys(_FLAG.findall(text))) for name, text in texts.items()}
    cases = "\n".join(f'        *:{name}) words="{words}" ;;' for name, words in flags.items())
    prefix = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return prefix + _SCRIPT.format(commands=" ".join(texts), cases=cases)


def _help(command: str) -> str:
    words = [sys.executable, "-P", "-m", "build_engines", command, "--help"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
