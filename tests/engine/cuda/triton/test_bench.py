"""`gpu_bench` from end to end with tiny sizes; what it says of speed here means nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.speed.bench_parts import PARTS
from tests.engine.interpreting import Interpreting

PROGRAM = """
import sys
from benchmarks.gpu_bench import main
assert main(sys.argv[1:]) == 0
"""


def dry_run(interpreting: Interpreting, written: Path, *parts: str) -> dict[str, Any]:
    """The results of a dry run of some parts."""
    interpreting.output(PROGRAM, "--dry-run", "--json", str(written), "--only", *parts)
    document: dict[str, Any] = json.loads(written.read_text())
    return document


def whole(document: dict[str, Any], *parts: str) -> dict[str, Any]:
    """Its rows by name, once every part is there and none has a fault."""
    assert {name: part["fault"] for name, part in document["parts"].items()} == dict.fromkeys(
        ("limits", *parts), ""
    )
    assert {row["part"] for row in document["rows"]} == {"limits", *parts}
    return {row["name"]: row for row in document["rows"]}


@pytest.mark.timeout(300)
def test_a_dry_run_measures_the_engine(interpreting: Interpreting, tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    document = dry_run(interpreting, written, "decode")
    rows = whole(document, "decode")
    assert {"decode batch 1", "decode batch 2", "copy, read + write"} <= set(rows)
    assert all(row["value"] > 0 for row in rows.values())
    assert all(value > 0 for value in document["limits"].values())
    assert set(document["fractions"]) == {"decode_b1", "decode_b2"}
    assert {"step_s", "limit_s", "qkv_limit_s"} <= set(rows["decode batch 1"]["raw"])
    assert document["missing"]["http_256"] == "part http did not run"
    assert written.with_suffix(".png").exists()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_dry_run_walks_through_every_part(interpreting: Interpreting, tmp_path: Path) -> None:
    document = dry_run(interpreting, tmp_path / "bench.json", *PARTS)
    rows = whole(document, *PARTS)
    assert {"prefill 40", "HTTP, 4 streams", "engine alone, 4 streams"} <= set(rows)
    assert {"swap", "http_4", "prefill_4k", "decode_b2"} <= set(document["fractions"])
