"""The command `completion`: a script with which a shell completes the commands of `conch`, their options and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

# Written by tests/frontend/cli/test_shell_completion.py: for each command the words behind each option that has few
# values, and under the empty text those at other places. The programs themselves would take seconds at each start of a
# shell.
WORDS = "completion.json"
_OF_STORE = ("show", "rm")  # commands that also take the names of artifacts, as they are when the shell asks
_ARTIFACTS = {
    "bash": '$(command ls "${CONCH_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/conch}/artifacts" 2>/dev/null)',
    "zsh": "$(command ls $home/artifacts 2>/dev/null)",
    "fish": "(command ls $home[1]/artifacts 2>/dev/null)",
}
# Bash splits a word at each colon and replaces the last part only.
_BASH = """\
_conch() {{
    local words line="${{COMP_LINE:0:COMP_POINT}}"
    local word="${{line##*[ =]}}"
    case "$COMP_CWORD:${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD - 1]}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
    case "$COMP_WORDBREAKS" in
        *:*) COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*:}}"}}"}}") ;;
    esac
}}
complete -o filenames -F _conch conch
"""
_ZSH = """\
_conch() {{
    local home=${{CONCH_HOME:-${{XDG_DATA_HOME:-$HOME/.local/share}}/conch}}
    local -a found
    compset -P '-*='
    case "$((CURRENT - 1)):$words[2]:${{${{IPREFIX%=}}:-$words[CURRENT-1]}}" in
{cases}
    esac
    compadd -a found
    _files
}}
(( $+functions[compdef] )) || {{ autoload -U compinit && compinit }}
compdef _conch conch
"""
_FISH = """\
function __conch_words
    set -l typed (commandline -opc)
    set -l command $typed[2]
    set -l data $XDG_DATA_HOME ~/.local/share
    set -l home $CONCH_HOME $data[1]/conch
    switch (count $typed)":$command:$typed[-1]"
{cases}
    end
end
complete -c conch -a '(__conch_words)'
"""
_CASES = {
    "bash": '        {pattern}) words="{words}" ;;',
    "zsh": "        {pattern}) found=({words}) ;;",
    "fish": "        case '{pattern}'\n            printf '%s\\n' {words}",
}
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """Return the script of bash, zsh or fish."""
    commands: Mapping[str, Mapping[str, list[str]]]
    commands = json.loads(resources.files("frontend.cli").joinpath(WORDS).read_text(encoding="utf-8"))
    cases = [("1:*", [*commands])]
    for command, places in commands.items():
        for flag, words in places.items():
            names = [_ARTIFACTS[shell]] if command in _OF_STORE and not flag else []
            cases.append((f"*:{command}:{flag or '*'}", [*names, *words]))
    lines = (_CASES[shell].format(pattern=pattern, words=" ".join(words)) for pattern, words in cases)
    return _SCRIPTS[shell].format(cases="\n".join(lines))
