"""The table of `docs/models.md`: what became of every type's variants."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.zoo.judge import EQUAL, IDLE, REFUSED, UNMADE

BEGIN, END = "<!-- models: begin -->", "<!-- models: end -->"
_LONGEST_REASON = 110
_HEAD = (
    "| type | equal | refused | computed by | refused because |",
    "|---|---:|---:|---|---|",
)


def rows(results: Path, types: Iterable[str], before: Mapping[str, str]) -> list[str]:
    """A line for each type, from the results that were kept; `before`: those of types without."""
    kept = {name: results / f"{name}.json" for name in types}
    return [
        _row(name, json.loads(path.read_text())) if path.exists() else before[name]
        for name, path in kept.items()
        if path.exists() or name in before
    ]


def table(lines: Iterable[str]) -> str:
    """The whole table, between its marks."""
    return "\n".join((BEGIN, *_HEAD, *lines, END))


def written(text: str, whole: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with another table between its marks."""
    before, _, rest = text.partition(begin)
    return before + whole + rest.partition(end)[2]


def rows_of(text: str) -> dict[str, str]:
    """The lines of a page's table, by type."""
    body = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in body.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def _row(name: str, found: list[dict[str, Any]]) -> str:
    equal = [one for one in found if one["what"] in (EQUAL, IDLE)]
    refused = [one for one in found if one["what"] == REFUSED]
    made = any(one["made"] for one in found if one["what"] != UNMADE)
    cells = (
        f"`{name}`",
        str(len(equal) or ""),
        str(len(refused) or ""),
        _computed_by(equal),
        "; ".join(_reasons(refused)) + ("" if made else " (by its configuration alone)"),
    )
    return f"| {' | '.join(cells)} |"


def _computed_by(equal: list[dict[str, Any]]) -> str:
    ways = {one["fused"]: one["variant"] for one in equal}
    if not ways:
        return ""
    if len(ways) == 1:
        return "fused decoder" if True in ways else "modules"
    return "fused decoder, some by modules"


def _reasons(refused: list[dict[str, Any]]) -> list[str]:
    """Each once, the commonest first, without what differs between variants."""
    counted: dict[str, int] = {}
    for one in refused:
        reason = re.sub(r"^([\w.-]+ is not supported yet|\([\w.-]+\)): ", "", one["why"])
        reason = reason.replace("|", "/")[:_LONGEST_REASON]
        counted[reason] = counted.get(reason, 0) + 1
    return sorted(counted, key=lambda reason: (-counted[reason], reason))
