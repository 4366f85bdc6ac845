"""Calls that this code base does without, and names that must not be in it."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import name_of, nodes_of, python_files, text_files, tree_of

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
CALLS = {"eval", "exec", "torch.load", "os.system", "os.popen", "yaml.load", "__import__"}
PRINTING = (
    "daemon/cli/",
    "daemon/engine/loading/convert.py",
    "daemon/engine/loading/fits.py",
    "daemon/engine/loading/requantise.py",
    "daemon/engine/loading/resolve.py",
    "tui/app.py",
    "tui/plain.py",
    "tui/__main__.py",
)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every banned import, call and argument of a module."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call):
            if _dotted(node.func) in CALLS:
                yield node.lineno, _dotted(node.func)
            for word in node.keywords:
                if word.arg == "shell" and not _is_false(word.value):
                    yield node.lineno, "shell="


def prints(tree: ast.Module) -> Iterator[int]:
    """Lines of every print call of a module."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and _dotted(node.func) == "print":
            yield node.lineno


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import pickle", ["pickle"]),
        ("from marshal import dumps", ["marshal"]),
        ("torch.load(path)", ["torch.load"]),
        ("run(line, shell=True)", ["shell="]),
        ("run(line, shell=False)", []),
        ("model.eval()", []),
        ("eval(text)", ["eval"]),
    ],
)
def test_the_check_sees_what_it_should(text: str, expected: list[str]) -> None:
    assert [name for _, name in faults(ast.parse(text))] == expected


def test_no_banned_calls() -> None:
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in python_files()
        for line, name in faults(tree_of(path))
    ]
    assert not found


def test_no_bare_prints_in_the_library() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in python_files("daemon", "tui")
        if not name_of(path).startswith(PRINTING)
        for line in prints(tree_of(path))
    ]
    assert not found


def test_nothing_names_the_place_where_it_was_written() -> None:
    places = [("/", "work/"), ("../", "shared"), (".", "library")]
    places += [("pypi", ".org"), ("python", "hosted")]
    own_words = [head + tail for head, tail in places]
    found = []
    for path in text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{name_of(path)}: {word}" for word in own_words if word in text]
    assert not found
