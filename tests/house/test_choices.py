"""Policies and placements: every one stands on the pages that list them."""

import re

import pytest

from daemon.placement import PLACEMENTS
from daemon.scheduler.policies import POLICIES
from tests.house.source import ROOT

ABLATIONS = {name for name in POLICIES if name.startswith("synced-")}
"""Parts of one policy, which has the row of the table."""


@pytest.mark.parametrize(
    ("value", "names"), [("scheduler.policy", POLICIES), ("scheduler.placement", PLACEMENTS)]
)
def test_the_configuration_page_names_every_choice(value: str, names: dict[str, object]) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{value}` |"))
    missing = set(names) - set(re.findall(r"`([\w-]+)`", row))
    assert not missing, f"docs/configuration.md, row `{value}`, lacks {sorted(missing)}"


def test_the_table_of_policies_is_one_table_and_names_all_but_the_parts_of_one() -> None:
    text = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
    table = text.split("## What the policies do\n")[1].split("\n\n")[0]
    named = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|[^|]+\|", table, re.MULTILINE))))
    wanted = set(POLICIES) - ABLATIONS
    assert named == wanted, f"docs/scheduling.md, 'What the policies do': {sorted(named ^ wanted)}"


def test_the_example_of_a_configuration_names_every_policy() -> None:
    text = (ROOT / "docs" / "llmd.toml").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("policy = "))
    missing = set(POLICIES) - ABLATIONS - set(re.findall(r"[\w-]+", row))
    assert not missing, f"docs/llmd.toml, `policy`, lacks {sorted(missing)}"
