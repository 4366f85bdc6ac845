"""ARCHITECTURE.md names every file of the product, and none that is not there."""

import re

from tests.house import tree
from tests.house.source import PACKAGES, ROOT, name_of, purpose_of, python_files

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


def test_the_documents_name_only_files_that_exist() -> None:
    gone = []
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:daemon|tui|tests|benchmarks|examples|docs)/[\w./-]+)`", text):
            if not (ROOT / name).exists():
                gone.append(f"{document}: {name}")
    assert not gone
