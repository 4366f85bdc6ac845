"""Structs of more than five fields are made with keywords: a swapped pair of floats passes mypy."""

import ast
from collections.abc import Iterator

from tests.house.source import name_of, nodes_of, python_files, tree_of

MOST_POSITIONAL = 5
GENERIC = {"astuple"}
"""Functions that give all fields of a struct of the same shape, in order."""


def fields_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Structs and named tuples of a file, and how many fields each has itself."""
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef):
            bases = " ".join(map(ast.unparse, node.bases))
            if "Struct" in bases or "NamedTuple" in bases:
                yield node.name, sum(isinstance(line, ast.AnnAssign) for line in node.body)


def positional(tree: ast.Module, large: set[str]) -> Iterator[int]:
    """Lines that make one of these with more than five values by position, or with a tuple."""
    for node in nodes_of(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in large:
            continue
        stars = [ast.unparse(value) for value in node.args if isinstance(value, ast.Starred)]
        smuggled = [star for star in stars if not any(name in star for name in GENERIC)]
        if smuggled or len(node.args) > MOST_POSITIONAL:
            yield node.lineno


def test_the_check_sees_what_it_should() -> None:
    text = "class A(NamedTuple):\n" + "".join(f" f{i}: int\n" for i in range(6))
    calls = "A(1,2,3,4,5,6)\nA(1,2,3,4,5,f5=6)\nA(1,*rest)\nA(*astuple(other))\nB(1,2,3,4,5,6)\n"
    assert dict(fields_of(ast.parse(text))) == {"A": 6}
    assert list(positional(ast.parse(calls), {"A"})) == [1, 3]


def test_large_structs_are_made_with_keywords() -> None:
    paths = python_files("daemon", "tui")
    sizes = dict(pair for path in paths for pair in fields_of(tree_of(path)))
    large = {name for name, num_fields in sizes.items() if num_fields > MOST_POSITIONAL}
    found = [
        f"{name_of(path)}:{line}" for path in paths for line in positional(tree_of(path), large)
    ]
    assert found == []
