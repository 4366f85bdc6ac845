"""Documents name only what is there: files, modules, make targets, links."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from daemon.cli.parser import build_parser
from tests.house.source import ROOT, name_of

ROOTS = frozenset(path.name for path in ROOT.iterdir() if path.is_dir())
PARTS = frozenset(path.name for path in (ROOT / "daemon").rglob("*") if path.is_dir())
"""First parts of paths: folders of the repository, and of the daemon, which need a suffix."""
COLUMN = 33
"""The column of ARCHITECTURE.md's list of layers at which their descriptions begin."""
_PATH = re.compile(r"(?<![\w/.~<>-])(\w+(?:/[\w.-]*\w)+)(?![\w<*-]|/\w)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_PART = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_MODULE = re.compile(r"python3? -m ((?:daemon|tui|tests|benchmarks)[\w.]*\w)")
_COMMAND = re.compile(r"python3? -m (?:daemon|tui|tests|benchmarks)[^\s`]*([^`\n]*)")
_FILE = re.compile(r"(?<![\w/])[\w./-]+\.(?:csv|npz|jsonl|json|rec|svg|md|toml)\b")
_PAGE = re.compile(r"(?<![\w/.-])[A-Z][A-Z_]+\.md\b")
_OWN = re.compile(r"(?:`|^ {4})llmd ([a-z][a-z-]*)", re.MULTILINE)
_TARGET = re.compile(r"(?:`|^ {4})make ([a-z][a-z-]*)", re.MULTILINE)


def documents() -> list[Path]:
    """Everything that people read about llmd."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def gone(text: str, folder: Path) -> Iterator[str]:
    """The missing files and targets that a document in this folder names."""
    for name in _PATH.findall(text):
        first = name.partition("/")[0]
        named = first in ROOTS or (first in PARTS and name.endswith(".py"))
        if named and not (ROOT / name).exists():
            yield name
    for target in _LINK.findall(text):
        if not (folder / target).exists():
            yield target
    for module in _MODULE.findall(text):
        if find_spec(module) is None:
            yield module
    for arguments in _COMMAND.findall(text):
        yield from (name for name in _FILE.findall(arguments) if not (ROOT / name).exists())
    known = commands()
    yield from (f"llmd {name}" for name in _OWN.findall(text) if name not in known)
    yield from (name for name in _PAGE.findall(text) if not (ROOT / name).exists())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    yield from (f"make {target}" for target in _TARGET.findall(text) if target not in targets)


@cache
def commands() -> frozenset[str]:
    """The commands of llmd."""
    found = [action.choices for action in build_parser()._actions if action.dest == "command"]
    return frozenset(name for choices in found if choices for name in choices)


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as links name them."""
    headings = (re.sub(r"[^\w -]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in headings}


def lost(text: str, folder: Path) -> Iterator[str]:
    """Links of a document in this folder to headings that are not there."""
    for target, part in _PART.findall(text):
        page = folder / target
        if page.suffix == ".md" and part not in anchors(page.read_text(encoding="utf-8")):
            yield f"{target}#{part}"
        if not target and part not in anchors(text):
            yield f"#{part}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`daemon/state/batch.py` and docs/adr/", []),
        ("`daemon/none.py`", ["daemon/none.py"]),
        ("see docs/none.md.", ["docs/none.md"]),
        ("`scheduler/order.py`", ["scheduler/order.py"]),
        ("and/or, tokens/s, application/json", []),
        ("benchmarks/results/gpu-<date>.json", []),
        ("[it](none.md) [and](https://example.org/none.md)", ["none.md"]),
        ("`python -m tests.house.none`", ["tests.house.none"]),
        ("python -m benchmarks.studies scheduling --trace none.csv", ["none.csv"]),
        ("`llmd serve --port 1` and `llmd none`", ["llmd none"]),
        ("NONE.md says so, ARCHITECTURE.md does not", ["NONE.md"]),
        ("`make test` and `make none`, which make none", ["make none"]),
    ],
)
def test_the_check_sees_what_it_should(text: str, expected: list[str]) -> None:
    assert list(gone(text, ROOT)) == expected


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_a_document_names_only_what_is_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not list(gone(text, document.parent))
    assert not list(lost(text, document.parent))


def test_the_check_of_links_to_headings_sees_what_it_should() -> None:
    assert anchors("# A `b`, c_d\n## In 8 bits, 2026-11-26\n# no") == {
        *("a-b-c_d", "in-8-bits-2026-11-26", "no")
    }
    text = "# Here\n[a](#here) [b](#there) [c](README.md#limits-today) [d](README.md#none)"
    assert list(lost(text, ROOT)) == ["#there", "README.md#none"]


def test_the_architecture_shows_the_layers_with_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lines = text.split("```text\n")[1].split("```")[0].splitlines()
    shown = [set(line[:COLUMN].split()) for line in lines]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract, *_) = project["tool"]["importlinter"]["contracts"]
    packages = {path.parent.name for path in (ROOT / "daemon").glob("*/__init__.py")}
    layers = [set(re.findall(r"daemon\.(\w+)", layer)) & packages for layer in contract["layers"]]
    assert shown == [{"tui"}, *filter(None, layers)]
    assert set().union(*shown) == packages | {"tui"}


MOST_OF_A_CELL = 120
"""Characters of a table's cell that are read at one glance; more are a paragraph's."""
TABLES_TO_GLANCE_AT = tuple(
    f"docs/{page}.md"
    for page in (
        *("clients", "instances", "operations", "placement", "power", "scheduling", "simulator"),
        *("sizing", "watching", "workloads"),
    )
)


def long_cells(text: str) -> list[str]:
    """Cells of tables that should be paragraphs."""
    rows = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [cell for row in rows for cell in row.split("|") if len(cell.strip()) > MOST_OF_A_CELL]


def test_the_check_of_cells_sees_what_it_should() -> None:
    assert long_cells(f"{'y' * 121}\n| a | {'x' * 120} |") == []
    assert len(long_cells(f"| {'x' * 121} | {'y' * 500} | a |")) == 2


@pytest.mark.parametrize("name", TABLES_TO_GLANCE_AT)
def test_no_cell_of_a_readable_page_is_a_paragraph(name: str) -> None:
    assert long_cells((ROOT / name).read_text(encoding="utf-8")) == []
