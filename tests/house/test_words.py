"""Docstrings begin with what a thing is, and variables have the names of what they hold."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.house.source import PACKAGES, name_of, nodes_of, python_files, tree_of

FIRST_WORDS = {"Who", "Whose", "Whoever", "Of", "So", "What", "Where"}
"""Words that begin a clause without a subject."""
NAMES = {"one", "told", "whoever"}
"""Variables that say nothing of what they hold."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def clauses(tree: ast.Module) -> Iterator[int]:
    """Lines of docstrings, those of constants too, that begin with one of these words."""
    for node in nodes_of(tree):
        if isinstance(node, Documented):
            text = ast.get_docstring(node)
            if text and first_word(text) in FIRST_WORDS:
                yield node.body[0].lineno
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for line, below in pairwise(body):
            if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                value = getattr(below.value, "value", None)
                if isinstance(value, str) and first_word(value) in FIRST_WORDS:
                    yield below.lineno


def first_word(text: str) -> str:
    return (text.split() or [""])[0].strip(",:")


def empty_names(tree: ast.Module) -> Iterator[int]:
    """Lines that give a variable or an argument one of these names."""
    for node in nodes_of(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES
        if stored or (isinstance(node, ast.arg) and node.arg in NAMES):
            yield node.lineno


def test_the_check_sees_what_it_should() -> None:
    text = '"""Who runs."""\nA = 1\n"""So many."""\ndef f(one):\n    """The sum."""\n    told = 1\n'
    tree = ast.parse(text)
    assert sorted(clauses(tree)) == [1, 3]
    assert sorted(empty_names(tree)) == [4, 6]


def test_docstrings_begin_with_what_a_thing_is() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in python_files(*PACKAGES)
        for line in clauses(tree_of(path))
    ]
    assert found == []


def test_variables_have_the_names_of_what_they_hold() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in python_files(*PACKAGES)
        for line in empty_names(tree_of(path))
    ]
    assert found == []
