"""Files and functions stay small enough to read at once; a longer file says why it is one."""

import ast
import re

import pytest

from tests.house.source import name_of, nodes_of, python_files, tree_of

FILE_LINES = 600
FUNCTION_LINES = 60
REASON_LINES = 5
"""Lines at a longer file's beginning that may hold its reason, as `# long: REASON`."""

_REASON = re.compile(r"^# long: \S+ \S+", re.MULTILINE)


def fault(text: str) -> str:
    """The fault of a file's length; empty: none."""
    lines = text.splitlines()
    excused = _REASON.search("\n".join(lines[:REASON_LINES]))
    if len(lines) > FILE_LINES and not excused:
        return f"{len(lines)} lines and no `# long: REASON` in the first {REASON_LINES}"
    if len(lines) <= FILE_LINES and excused:
        return f"{len(lines)} lines need no reason"
    return ""


@pytest.mark.parametrize(
    ("head", "num_lines", "faulty"),
    [
        ('"""A file."""', FILE_LINES, False),
        ('"""A file."""', FILE_LINES + 1, True),
        ("# long: one step's story", FILE_LINES + 1, False),
        ("# long:", FILE_LINES + 1, True),
        ("# long: one step's story", FILE_LINES, True),
    ],
)
def test_the_check_sees_what_it_should(head: str, num_lines: int, faulty: bool) -> None:
    assert bool(fault("\n".join([head, *["pass"] * (num_lines - 1)]))) is faulty


def test_files_are_short_or_say_why_not() -> None:
    found = {name_of(path): fault(path.read_text(encoding="utf-8")) for path in python_files()}
    assert found
    assert not {name: what for name, what in found.items() if what}


def test_functions_are_short() -> None:
    long = {}
    for path in python_files():
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines
    assert not long
