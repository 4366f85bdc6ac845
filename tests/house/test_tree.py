"""The printed tree names every file of the product, and each file says its purpose."""

from tests.house import tree
from tests.house.source import PACKAGES, name_of, purpose_of, python_files


def test_the_tree_names_every_file_and_no_other() -> None:
    real = {name_of(path) for path in python_files(*PACKAGES)}
    assert set(tree.named_files(tree.build())) == real


def test_every_module_says_its_purpose() -> None:
    said = [path for path in python_files() if path.read_text(encoding="utf-8").strip()]
    silent = [name_of(path) for path in said if not purpose_of(path)]
    assert not silent


def test_a_purpose_is_a_line_of_the_tree() -> None:
    said = [path for path in python_files(*PACKAGES) if purpose_of(path)]
    cut = [name_of(path) for path in said if not purpose_of(path).endswith((".", ":"))]
    assert not cut, f"the first sentence of a docstring stands on its first line: {cut}"
