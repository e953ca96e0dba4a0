"""Private names of other libraries are used in few modules, each with a test; `make lowest` runs this, too."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PACKAGES = ("frontend", "model_repository", "build_engines")
DOCUMENTED = {"_replace", "_asdict", "_fields", "_exit"}  # of named tuples, and of os
# Each module says why it needs the names.
ALLOWED = {
    "frontend.handlers.completions": {"_send_headers_immediately"},
    "frontend.telemetry.metrics": {"_buckets", "_sum"},
    "model_repository.system.command_parser": {"_AppendAction", "_actions", "_check_value"},
    "build_engines.llama_cpp.gguf_header": {"_build_tensors", "_get", "_get_field_parts"},
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in DOCUMENTED


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a module or class gives a value."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return {name for name in names if is_private(name)}


def used(tree: ast.AST) -> set[str]:
    """Return the private names that a module or class reads, but for those of annotations: mypy checks these."""
    nodes = list(ast.walk(tree))
    annotations = {
        id(part)
        for node in nodes
        for name in ("annotation", "returns")
        if (annotation := getattr(node, name, None)) is not None
        for part in ast.walk(annotation)
    }
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute) and id(node) not in annotations}
    names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in names if is_private(name)}


def tree_of(made: type) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(made)))
    except (OSError, TypeError):
        return ast.Module([], [])


def inherited(module: str) -> Iterator[str]:
    """Yield the private names that a class of a module shares with a class of another library."""
    for made in vars(importlib.import_module(module)).values():
        if inspect.isclass(made) and made.__module__ == module:
            tree = tree_of(made)
            for base in made.__mro__[1:]:
                if base.__module__.partition(".")[0] not in PACKAGES:
                    yield from (used(tree) | defined(tree)) & (defined(tree_of(base)) | vars(base).keys())


def test_private_names_of_other_libraries_are_used_only_where_they_are_allowed() -> None:
    trees = {
        ".".join(path.relative_to(PROJECT).with_suffix("").parts): ast.parse(path.read_text())
        for package in PACKAGES
        for path in (PROJECT / package).rglob("*.py")
        if path.parent.name != "1"  # a model of Triton, in no package
    }
    ours = set().union(*map(defined, trees.values()))
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = used(tree) - ours
        if "tensorrt_llm" not in module and module.rpartition(".")[2] not in ("__main__", "python_backend", "stages"):
            names.update(inherited(module))
        if names:
            found[module] = names
    assert found == ALLOWED
