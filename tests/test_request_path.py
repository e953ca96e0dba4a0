"""README's list of the functions on the path of a request: each one exists, and the list is short enough to be read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_FUNCTIONS, MAX_LINES = 30, 600


def num_lines(path: str, name: str) -> int:
    """Return the length of a function, without its decorators."""
    node: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        found = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == part]
        assert found, f"{path}: no {name}"
        node = found[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_the_readme_names_few_functions_and_they_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:frontend|model_repository)/[\w/]+\.py):([\w.]+)`", text)
    assert 20 < len(named) <= MAX_FUNCTIONS
    assert sum(num_lines(*each) for each in named) <= MAX_LINES
