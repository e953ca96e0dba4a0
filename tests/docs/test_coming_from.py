"""The flags, fields, routes, commands and variables that docs/coming-from.md calls ours are there."""

from __future__ import annotations

import re

from tests.docs.options import commands, options
from tests.docs.pages import ROOT, cells, code_spans
from tests.docs.sources import code

PAGE = "docs/coming-from.md"
FIELDS = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8").partition("\nRefused by every runtime")[0]
ROUTES = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_each_name_of_ours_exists() -> None:
    names = [(line, name) for line, cell in cells(PAGE, "Conch") for name in code_spans(cell)]
    assert len(names) > 80
    assert [f"{PAGE}:{line}: {name}" for line, name in names if not _is_ours(name)] == []


def _is_ours(name: str) -> bool:
    if name.startswith("--"):
        return name in options()
    if name.startswith("conch "):
        return name.split()[1] in commands()
    if name.startswith(("GET ", "POST ")):
        return f'"{name.split()[1]}"' in code() or f"`{name}`" in ROUTES
    if re.fullmatch(r"[A-Z_]+", name):
        return name in code()
    return "/" in name or f"| `{name}` |" in FIELDS  # the form of a model's name, or a field
