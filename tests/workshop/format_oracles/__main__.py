"""Compares parsers; with folders of chat templates, reads the calls that these write."""

import sys

from tests.workshop.format_oracles import agreement, templates

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["--differences"]:
        print(agreement.differences(), end="")
    elif arguments[:1] == ["--differences"]:
        for template, name, outcome, text in templates.results(arguments[1:]):
            if outcome in ("not read", "refused"):
                print(f"{template}, {name}: {outcome}: {text!r}")
    else:
        print(templates.table(arguments) if arguments else agreement.table(), end="")
