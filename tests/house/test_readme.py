"""What the README shows is what is there."""

import re

from daemon.config.load import flatten, load
from tests.house import readme
from tests.house.source import ROOT


def test_the_examples_are_shown_as_they_are() -> None:
    shown = readme.shown()
    assert set(shown) == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.*")
    }
    for name, code in shown.items():
        assert code == (ROOT / name).read_text(encoding="utf-8"), "python -m tests.house.readme"


def test_the_make_targets_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"run", "test"} <= named <= targets


def test_the_values_it_names_exist() -> None:
    keys = set(flatten(load().config))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:model|server|scheduler|memory|daemon)\.[a-z_]+)`", text))
    assert named
    assert named <= keys
