"""The glossary is short, in alphabetical order, and each word is defined in the file beside it."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.house.source import ROOT, nodes_of, tree_of

MOST_ROWS = 30
_ROW = re.compile(r"^\| ([^|]+?) \| ([^|]+?) \| `([^|`]+)` \|$", re.MULTILINE)
_HEAD = "| Word | Meaning | File |\n|---|---|---|\n"


class Entry(NamedTuple):
    """A row: words that are explained together, and the file that defines them."""

    words: str
    meaning: str
    file: str


def entries(text: str) -> list[Entry]:
    """All rows; one in another shape fails."""
    table = text.split(_HEAD)[1].rstrip("\n")
    found = [Entry(*row) for row in _ROW.findall(table)]
    assert len(found) == len(table.split("\n")), "a row that is not `word, meaning, file`"
    return found


def definitions(tree: ast.Module) -> Iterator[str]:
    """The names that a file defines, and its docstrings, in lower case."""
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name.lower()
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr).lower()
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value).lower()


def undefined(words: str, tree: ast.Module) -> list[str]:
    """Words of a row that a file has in no name and no docstring; a plural will do."""
    texts = list(definitions(tree))
    missing = []
    for word in words.split(", "):
        stem = word.removesuffix("y").replace(" ", "[ _-]?")
        if not any(re.search(rf"(?<![a-z]){stem}", text) for text in texts):
            missing.append(word)
    return missing


ENTRIES = entries((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))


def test_the_check_sees_what_it_should() -> None:
    tree = ast.parse('"""Families of kernels."""\nclass RemoteKV:\n    num_fenced: int = 0\n')
    assert undefined("family, remote kv, fenced, epoch", tree) == ["epoch"]
    assert entries(f"{_HEAD}| a | b c. | `d.py` |\n") == [Entry("a", "b c.", "d.py")]
    with pytest.raises(AssertionError):
        entries(f"{_HEAD}| a | b | `d.py` |\n| a | b |\n")


def test_the_glossary_is_short_and_in_order() -> None:
    words = [entry.words.lower() for entry in ENTRIES]
    assert len(words) <= MOST_ROWS
    assert words == sorted(set(words))


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.words for entry in ENTRIES])
def test_a_word_is_defined_in_its_file(entry: Entry) -> None:
    path = ROOT / entry.file
    assert path.is_file(), f"{entry.file} is not there"
    assert undefined(entry.words.lower(), tree_of(path)) == []
