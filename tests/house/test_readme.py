"""The README stays one screen with its two commands, and pages name what exists."""

import re

from daemon.config.load import flatten, load
from tests.house.source import ROOT

README = ROOT / "README.md"
SCREEN_LINES = 60


def test_the_readme_is_one_screen_with_its_two_commands() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= SCREEN_LINES
    assert {"    make run", "    make test"} <= set(lines)


def test_the_values_that_the_configuration_page_names_exist() -> None:
    keys = set(flatten(load().config))
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:model|server|scheduler|memory|daemon)\.[a-z_]+)`", text))
    assert named
    assert named <= keys


def test_the_page_of_clients_names_every_example() -> None:
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    examples = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.*")}
    assert examples
    assert examples <= set(re.findall(r"`(examples/[\w.]+)`", text))
