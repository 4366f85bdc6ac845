"""What a check or a measurement came to, as a table for people and a file for later."""

import json
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from daemon import __version__

RESULTS = Path(__file__).resolve().parent.parent / "results"


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: its error against the limit of what rounding may do."""

    name: str
    error: float
    limit: float
    note: str = ""

    def __post_init__(self) -> None:
        # numpy's numbers too: JSON would refuse them when all the rest has been computed.
        for name in ("error", "limit"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def ok(self) -> bool:
        """NaN is never within a limit."""
        return self.error <= self.limit

    def line(self) -> str:
        """One line of the table."""
        mark = "ok  " if self.ok else "FAIL"
        return f"{mark} {self.name:<72} {self.error:9.2e} <= {self.limit:8.1e} {self.note}".rstrip()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside its limit in the hardware, where it has one.

    `key` names the entry of the results' `fractions` that value / limit becomes; `raw` keeps the
    timings behind the value, in units that its keys end with.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""
    key: str = ""
    raw: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """One line of the table."""
        share = f"{100 * self.value / self.limit:5.1f} % of {self.limit:,.1f}" if self.limit else ""
        return f"{self.name:<52} {self.value:12,.2f} {self.unit:<10} {share} {self.note}".rstrip()


def versions(device: str) -> dict[str, str]:
    """What the numbers were made with."""
    found = {"llmd": __version__, "python": platform.python_version()}
    found["device"] = device_name(device)
    for name in ("torch", "triton", "transformers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    found["cuda"] = torch.version.cuda or "none"
    return found


def device_name(device: str) -> str:
    """The GPU's product name, or the processor's architecture."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"cpu {platform.machine()}"


def write(kind: str, device: str, rows: Iterable[Check | Figure], path: Path | None) -> Path:
    """Write the rows with their versions; by default to results/gpu-<date>-<device>-<kind>.json."""
    now = datetime.now(UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
    path = path or RESULTS / f"gpu-{now:%Y-%m-%d}-{slug}-{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "kind": kind,
        "time": now.isoformat(timespec="seconds"),
        "versions": versions(device),
        "rows": [asdict(row) | ({"ok": row.ok} if isinstance(row, Check) else {}) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
