"""A test that no two public classes share a name."""

import ast
from collections import defaultdict
from collections.abc import Iterable

from tests.house.source import PACKAGES, name_of, python_files, tree_of


def public_classes(tree: ast.Module) -> Iterable[str]:
    """Names of a file's own classes but for those that begin with an underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def shared(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Names that classes of several files have, with these files."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for name in public_classes(tree):
            places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_the_check_sees_what_it_should() -> None:
    texts = {"a": "class One: ...\nclass _Two: ...", "b": "class One: ...\nclass _Two: ..."}
    assert shared({path: ast.parse(text) for path, text in texts.items()}) == {"One": ["a", "b"]}


def test_no_two_public_classes_share_a_name() -> None:
    found = shared({name_of(path): tree_of(path) for path in python_files(*PACKAGES)})
    assert found == {}
