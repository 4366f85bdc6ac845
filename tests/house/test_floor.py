"""A file of few lines that one file alone imports belongs to that file."""

import ast
from pathlib import Path

from tests.house.source import ROOT, name_of, nodes_of, python_files, tree_of

FLOOR_LINES = 40
FAMILIES = (
    "daemon/scheduler/policies/",
    "daemon/scheduler/fillers/",
    "daemon/placement/",
    "daemon/length_models/",
)
"""Folders in which each file is one of a kind, chosen by its name, however small it is."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of `known` that a file imports, in functions and for types too."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & known


def crumbs(sizes: dict[str, int], imports: dict[str, set[str]]) -> list[str]:
    """Modules below the floor that exactly one other imports."""
    users = {name: [user for user, used in imports.items() if name in used] for name in sizes}
    return [name for name, lines in sizes.items() if lines < FLOOR_LINES and len(users[name]) == 1]


def test_the_check_sees_what_it_should() -> None:
    sizes = {"a": 300, "b": 39, "c": 40, "d": 12, "e": 5}
    assert crumbs(sizes, {"a": {"b", "c", "d"}, "c": {"d"}}) == ["b"]
    names = imported(ast.parse("from daemon import x\ndef f():\n import daemon.y"), {"daemon.x"})
    assert names == {"daemon.x"}


def test_no_crumb_lies_beside_the_only_file_that_needs_it() -> None:
    files = {
        module_of(path): path
        for path in python_files("daemon", "tui")
        if path.name not in ("__init__.py", "__main__.py")
    }
    paths = python_files("daemon", "tui")
    imports = {name_of(path): imported(tree_of(path), set(files)) for path in paths}
    sizes = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in files.items()
        if not name_of(path).startswith(FAMILIES)
    }
    assert crumbs(sizes, imports) == []
