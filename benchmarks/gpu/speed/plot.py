"""Bars of the shares of their limits beside the goals: `python -m benchmarks.gpu.speed.plot FILE`.

matplotlib is optional: without it there is no plot.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def plot(document: dict[str, Any], path: Path) -> Path | None:
    """Draw a run's fractions to `path`; None where there is nothing to draw, or no matplotlib."""
    fractions = document["fractions"]
    if not fractions or find_spec("matplotlib") is None:
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in document["goals"] if name in fractions]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1.6))
    places = range(len(names))
    bars = axes.barh(places, [100 * fractions[name] for name in names], color="#4c72b0", height=0.6)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    goals = [100 * document["goals"][name] for name in names]
    starts, ends = ([place + side for place in places] for side in (-0.4, 0.4))
    axes.vlines(goals, starts, ends, color="#c44e52", linewidth=2, label="goal")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(110, *(115 * fractions[name] for name in names)))
    axes.set_xlabel("% of the limit measured in the same run")
    axes.set_title(f"{document['versions']['device']}, {document['time'][:10]}", fontsize=10)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


if __name__ == "__main__":
    source = Path(sys.argv[1])
    plot(json.loads(source.read_text(encoding="utf-8")), source.with_suffix(".png"))
