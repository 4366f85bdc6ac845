"""`python -m tests.zoo [TYPE ...]`: what becomes of every variant, a line each, kept as JSON."""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from transformers.utils import logging  # noqa: E402

from tests.zoo.judge import FAULTS, IDLE, UNMADE, outcome  # noqa: E402
from tests.zoo.types import types, variants_of  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--variant", default="", help="only those whose name holds this")
    parser.add_argument("--results", type=Path, default=Path("build/zoo"))
    parser.add_argument("--go-on", action="store_true", help="leave out types that have results")
    parser.add_argument("-v", action="store_true", help="show every line, not faults alone")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    asked.results.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    began_s = time.monotonic()
    for model_type in asked.types or types():
        kept = asked.results / f"{model_type}.json"
        if asked.go_on and kept.exists():
            continue
        lines = []
        for variant in variants_of(model_type):
            if asked.variant not in variant.name:
                continue
            found = outcome(variant)
            lines.append(found.asdict())
            counts[found.what] = counts.get(found.what, 0) + 1
            if asked.v or found.what in FAULTS:
                how = "fused " if found.fused else ""
                print(f"{variant.label:<44}{found.what} {how}{found.distance:.1e} {found.why}", flush=True)
        if not asked.variant:
            kept.write_text(json.dumps(lines, indent=1))
    print(counts, f"{time.monotonic() - began_s:.0f} s")
    return int(any(counts.get(what) for what in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
