"""What every process of the engine does first: it shares the cores and stays offline."""

import os
from pathlib import Path


def share_cores() -> None:
    """Keep OpenMP's threads from spinning between operations; call before torch is imported.

    By default they spin for milliseconds. On an idle machine that saves a few microseconds an
    operation; where the daemon's other processes want the same cores it makes a step many times
    slower, as one thread spins on the core that the other is waiting for.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def stay_offline() -> None:
    """Keep transformers from asking the network; call before it is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_compiled(cache: Path) -> None:
    """Have numba keep what it compiles below a cache folder; call before it is imported."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / "numba"))
