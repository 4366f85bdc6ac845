"""docs/tree.md names every file of the product, and none that is not there."""

from tests.house import tree
from tests.house.source import PACKAGES, name_of, purpose_of, python_files

REFRESH = "refresh it: python -m tests.house.tree --write"


def test_the_tree_names_every_file_and_no_other() -> None:
    real = {name_of(path) for path in python_files(*PACKAGES)}
    named = set(tree.named_files(tree.written()))
    assert named == real, f"missing {real - named}, gone {named - real}; {REFRESH}"


def test_the_purposes_are_those_of_the_modules() -> None:
    assert tree.written() == tree.build(), REFRESH


def test_every_module_says_its_purpose() -> None:
    said = [path for path in python_files() if path.read_text(encoding="utf-8").strip()]
    silent = [name_of(path) for path in said if not purpose_of(path)]
    assert not silent
