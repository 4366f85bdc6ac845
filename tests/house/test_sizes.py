"""Files and functions stay small enough to read at once."""

import ast

from tests.house.source import name_of, python_files, tree_of

FILE_LINES = 400
FUNCTION_LINES = 60


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in python_files()}
    assert lengths
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES}


def test_functions_are_short() -> None:
    long = {}
    for path in python_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines
    assert not long
