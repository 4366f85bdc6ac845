"""Records of decisions are short, say what was decided and what it costs, and are listed."""

import re
from pathlib import Path

import pytest

from tests.house.source import ROOT, name_of

FOLDER = ROOT / "docs" / "adr"
MOST_LINES = 25
MOST_COLUMNS = 170
"""The length of a line, so that a record does not grow to the side."""

_TITLE = re.compile(r"# (\d+)\. (.+)")
_SUPERSEDED = re.compile(r"^\*Superseded.*\*$", re.MULTILINE)
_SUPERSEDES = re.compile(r"^Supersedes (.*)$", re.MULTILINE)
_NUMBER = re.compile(r"\]\((\d{4})-")
_OPENINGS = ("Of", "So", "What", "Where", "Who", "Whose")


def records() -> list[Path]:
    return sorted(FOLDER.glob("[0-9]*.md"))


def superseded_by(text: str) -> list[str]:
    """The numbers of the records that this one says are in its place."""
    return [number for line in _SUPERSEDED.findall(text) for number in _NUMBER.findall(line)]


def row_of(name: str, text: str) -> str:
    """A record's row in the list."""
    title = _TITLE.match(text)
    assert title
    later = " and ".join(superseded_by(text))
    note = f"; superseded in part by {later}" if later else ""
    return f"| [{name[:4]}]({name}) | {title[2]}{note} |"


def faults(name: str, text: str) -> list[str]:
    """The faults of a record: parts that it lacks, or has too much of."""
    lines = text.rstrip("\n").split("\n")
    title = _TITLE.fullmatch(lines[0])
    found = []
    if title is None or int(title[1]) != int(name[:4]):
        found.append("its title has not its number")
    elif title[2].split()[0] in _OPENINGS:
        found.append(f"its title begins with {title[2].split()[0]}")
    if len(lines) > MOST_LINES:
        found.append(f"{len(lines)} lines")
    found += [f"line {i} is long" for i, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS]
    found += [f"no {part}" for part in ("Decided", "Costs") if f"**{part}.** " not in text]
    if len(_SUPERSEDED.findall(text)) != len(_SUPERSEDED.findall("\n".join(lines[:4]))):
        found.append("it says too late that it is superseded")
    return found


def test_the_check_sees_what_it_should() -> None:
    later = "*Superseded in part: by [ADR 19](0019-a.md).*"
    good = f"# 7. Fusing\n\n{later}\n\n**Decided.** x\n**Costs.** y\n"
    assert faults("0007-a.md", good) == [] and superseded_by(good) == ["0019"]
    assert row_of("0007-a.md", good) == "| [0007](0007-a.md) | Fusing; superseded in part by 0019 |"
    assert faults("0008-a.md", good) == ["its title has not its number"]
    assert faults("0007-a.md", good.replace("Fusing", "Who fuses")) == ["its title begins with Who"]
    assert faults("0007-a.md", good.replace("**Costs.**", "Costs")) == ["no Costs"]
    assert faults("0007-a.md", good + "\n" * 30 + "end\n") == ["37 lines"]
    assert faults("0007-a.md", good + "x" * 171) == ["line 7 is long"]
    late = good.replace("Decided.** x", "Decided.** x\n\n*Superseded.*")
    assert faults("0007-a.md", late) == ["it says too late that it is superseded"]


@pytest.mark.parametrize("record", records(), ids=name_of)
def test_a_record_is_short_and_says_what_it_decides_and_costs(record: Path) -> None:
    assert faults(record.name, record.read_text(encoding="utf-8")) == []


def test_the_list_names_every_record_with_its_title_and_what_supersedes_it() -> None:
    rows = [row_of(path.name, path.read_text(encoding="utf-8")) for path in records()]
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*$", text, re.MULTILINE) == rows
    assert [path.name[:4] for path in records()] == [f"{i:04}" for i in range(1, len(rows) + 1)]


def test_a_record_that_supersedes_another_is_named_there() -> None:
    texts = {path.name[:4]: path.read_text(encoding="utf-8") for path in records()}
    for number, text in texts.items():
        for line in _SUPERSEDES.findall(text):
            for earlier in _NUMBER.findall(line):
                assert number in superseded_by(texts[earlier]), f"{earlier} does not name {number}"
        assert all(int(later) > int(number) for later in superseded_by(text))
