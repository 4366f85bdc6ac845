"""The results of a run as one document, written anew after each part."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Row
from benchmarks.gpu.report import RESULTS

GOALS = {
    "decode_b1": 0.80,
    "decode_b32": 0.80,
    "decode_b128": 0.78,
    "decode_b256": 0.78,
    "prefill_4k": 0.75,
    "swap": 0.92,
    "handoff": 0.92,
    "http_256": 0.90,
}
"""Each share of its limit that a run is to give, and what it should come to."""

SOURCES = {
    "prefill_4k": "prefill",
    "swap": "swap",
    "handoff": "handoff",
    "http_256": "http",
}
"""The part that a share comes from; others come from `decode`."""


class Results:
    """What is known so far, and the file that says it."""

    def __init__(self, versions: dict[str, str], path: Path | None, dry: bool) -> None:
        now = datetime.now(UTC)
        slug = re.sub(r"[^a-z0-9]+", "-", versions["device"].lower()).strip("-")
        ending = "-dry-run" if dry else ""
        self.path = path or RESULTS / f"gpu-{now:%Y-%m-%d}-{slug}{ending}.json"
        self._head = {
            "kind": "dry-run" if dry else "bench",
            "time": now.isoformat(timespec="seconds"),
            "versions": versions,
        }
        self._limits: dict[str, float] = {}
        self._rows: dict[str, list[Row]] = {}  # by part
        self._parts: dict[str, dict[str, Any]] = {}

    def heard(self, part: str, rows: list[Row]) -> None:
        """All rows of a part so far."""
        self._rows[part] = rows
        self.write()

    def ended(self, part: str, elapsed_s: float, fault: str) -> None:
        """A part is over; `fault` says why it is not whole, or that it was left out."""
        self._parts[part] = {"elapsed_s": round(elapsed_s, 1), "fault": fault}
        self.write()

    def limits(self, limits: dict[str, float]) -> None:
        """What the device can do."""
        self._limits = limits
        self.write()

    def document(self) -> dict[str, Any]:
        """Everything, as the file has it."""
        fractions = self.fractions()
        return {
            **self._head,
            "limits": self._limits,
            "fractions": fractions,
            "goals": GOALS,
            "missing": {key: self._reason(key) for key in GOALS if key not in fractions},
            "parts": self._parts,
            "rows": [{"part": part, **row} for part, rows in self._rows.items() for row in rows],
        }

    def fractions(self) -> dict[str, float]:
        """The shares that were measured; of several figures with one key the smallest."""
        found: dict[str, float] = {}
        for rows in self._rows.values():
            for row in rows:
                if row["key"] and row["limit"]:
                    share = round(row["value"] / row["limit"], 4)
                    found[row["key"]] = min(share, found.get(row["key"], share))
        return found

    def write(self) -> None:
        """Put the document in place of the one before, which a reader never sees half of."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)

    def _reason(self, key: str) -> str:
        part = SOURCES.get(key, "decode")
        if part not in self._parts:
            return f"part {part} did not run"
        return f"part {part}: {self._parts[part]['fault'] or 'it did not measure this'}"
