"""The first steps of every process of the engine: it shares the cores and stays offline."""

import contextlib
import ctypes
import logging
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from daemon.base.files import copy_missing

log = logging.getLogger(__name__)

_STAMP = ".last-start"
_BY_CONTENT = "daemon.engine.cpu.compiled.ByContent"

INSTALLED = Path(sys.prefix) / "share" / "llmd" / "numba"
"""Code that `scripts/prepare_embedded.py` compiled for this processor, when llmd was installed."""

UNUSED_S = 30 * 24 * 3600.0
"""Compiled code that was not read for this long is deleted."""


def share_cores() -> None:
    """Keep OpenMP's threads from spinning between operations; call before torch is imported.

    By default they spin for milliseconds. On an idle machine that saves a few microseconds an
    operation; where the daemon's other processes want the same cores it makes a step many times
    slower, as one thread spins on the core that the other is waiting for.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")


CACHE_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""How many primitives oneDNN keeps, and torch beside it: one for each shape of a product."""

CACHED_PRIMITIVES = 16


def bound_caches() -> None:
    """Have the libraries keep few of what they compile for each shape; before torch is imported.

    Steps have any number of tokens, so there are thousands of shapes: by default a worker grows by
    hundreds of megabytes before their caches are full.
    """
    for variable in CACHE_VARIABLES:
        os.environ.setdefault(variable, str(CACHED_PRIMITIVES))


def keep_to(cpus: Collection[int]) -> None:
    """Keep every thread that this process has, or will have, on these CPUs; nowhere if it is empty.

    Threads take the mask of the thread that starts them; those that imports started are set one
    by one. Where none of the CPUs may be used any more, the process runs wherever it may.
    """
    if not cpus:
        return
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
    except OSError as error:
        log.warning("this worker is not kept on cpus %s: %s", sorted(cpus), error.strerror)


def give_back() -> None:
    """Have the C library return to the kernel what is free between what is in use.

    A trial of the model frees some 400 MB, which is not needed again, and long prompts as much as
    their states take. Without malloc_trim, no effect.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def stay_offline() -> None:
    """Keep transformers from asking the network; call before it is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_compiled(cache: Path) -> None:
    """Have numba and Triton keep what they compile below a cache folder, beyond restarts.

    Call before they are imported. Both name what they keep by the code it was made from, their own
    version and the processor, so another card or version never takes it by mistake, and another
    checkout of the same code takes it; what older ones left is removed after a month. A new folder
    has what the installation compiled. Where it cannot be written they are left alone.
    """
    for variable, name in (("NUMBA_CACHE_DIR", "numba"), ("TRITON_CACHE_DIR", "triton")):
        folder = cache / name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _STAMP).touch()
            os.environ.setdefault(variable, str(folder))
            if name == "numba":
                os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", _BY_CONTENT)
                copy_missing(INSTALLED, folder)
            _forget_unused(folder)


def _forget_unused(folder: Path) -> None:
    """Remove the entries of a cache that were not read or written for `UNUSED_S`.

    By the file system's own clock. It notes the time of a read once a day at least, or never; then
    what is in use is compiled anew once in that time.
    """
    since = (folder / _STAMP).stat().st_mtime - UNUSED_S
    for entry in (path for path in folder.iterdir() if path.is_dir()):
        stats = [file.stat() for file in entry.rglob("*") if file.is_file()]
        used = [max(stat.st_atime, stat.st_mtime) for stat in stats] or [entry.stat().st_mtime]
        if max(used) < since:
            shutil.rmtree(entry, ignore_errors=True)
