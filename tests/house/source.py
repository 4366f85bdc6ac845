"""The project's own source files, as text and as syntax trees."""

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("daemon", "tui")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "examples", "scripts")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".service", ".tcss", ".json"}
TEXT_NAMES = {"Makefile", "run"}


def python_files(*folders: str) -> list[Path]:
    """Every Python file of the folders (all of the project's where none is named), sorted."""
    found = (path for name in folders or FOLDERS for path in (ROOT / name).rglob("*.py"))
    return sorted(path for path in found if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    """The path as messages show it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, kept: to parse all files takes seconds, and many rules ask."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree, kept likewise."""
    return tuple(ast.walk(tree))


def purpose_of(path: Path) -> str:
    """The first line of a module's docstring, or nothing."""
    docstring = ast.get_docstring(tree_of(path)) or ""
    return docstring.partition("\n")[0].strip()


def text_files() -> Iterator[Path]:
    """Every file that a person reads, hidden folders left out but for `.ci`."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [n for n in folders if n == ".ci" or not (n.startswith((".", "__")))]
        for name in names:
            if Path(name).suffix in TEXT_SUFFIXES or name in TEXT_NAMES:
                yield Path(folder, name)
