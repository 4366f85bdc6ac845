"""`python -m tests.zoo [TYPE ...]`: what becomes of every variant; results are kept as JSON.

`--go-on` leaves out types that have results already; `--write docs/models.md` makes the page's
table of the results that there are; types without keep the row that they had. Exits with 1 where
anything is wrong.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers.utils import logging

from tests.zoo.judge import FAULTS, Outcome, outcome
from tests.zoo.table import rows, rows_of, table, written
from tests.zoo.types import types, variants_of


def main() -> int:
    """Run, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--variant", default="", help="only those whose name holds this")
    parser.add_argument("--results", type=Path, default=Path("build/zoo"))
    parser.add_argument("--go-on", action="store_true", help="leave out types that have results")
    parser.add_argument("--write", type=Path, help="a page whose table is made of the results")
    parser.add_argument("-v", action="store_true", help="show every line, not faults alone")
    asked = parser.parse_args()
    if asked.write:
        page = asked.write.read_text()
        whole = table(rows(asked.results, types(), rows_of(page)))
        asked.write.write_text(written(page, whole))
        return 0
    prepare()
    asked.results.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    began_s = time.monotonic()
    for model_type in asked.types or types():
        kept = asked.results / f"{model_type}.json"
        if asked.go_on and kept.exists():
            continue
        found = [show(one, asked.v) for one in outcomes(model_type, asked.variant)]
        counts.update(one.what for one in found)
        if not asked.variant:
            kept.write_text(json.dumps([asdict(one) for one in found], indent=1))
    print(dict(counts), f"{time.monotonic() - began_s:.0f} s")
    return int(any(counts[what] for what in FAULTS))


def outcomes(model_type: str, part: str) -> Iterator[Outcome]:
    """A type's variants whose names contain `part`."""
    return (outcome(one) for one in variants_of(model_type) if part in one.name)


def show(found: Outcome, everything: bool) -> Outcome:
    """Print a line, if it is of interest."""
    if everything or found.what in FAULTS:
        how = "fused " if found.fused else ""
        label = f"{found.model_type}/{found.variant}"
        print(f"{label:<44}{found.what} {how}{found.distance:.1e} {found.why}", flush=True)
    return found


def prepare() -> None:
    """One thread, and no talk of transformers' own."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
