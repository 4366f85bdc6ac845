"""Prepares the embedded model for this processor: its conversion, its kernels, its trial.

An installation keeps them beside its packages, and new caches begin with them: the first start of
a service converts, compiles and tries nothing. It is a whole start of a worker, of the instance
that `make run` has: what its trial said holds for this processor, these versions and this code.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

CONVERTED = 0.3
"""Share of all when the model is converted."""


def main() -> int:
    """Prepare it; 0 also where that cannot be: starts do it for themselves then."""
    _tell(0.0, "imports")
    from daemon.engine.process import INSTALLED, keep_compiled, share_cores, stay_offline
    from daemon.models.embedded import forget_installed, keep_installed

    os.environ["NUMBA_CACHE_DIR"] = str(INSTALLED)
    stay_offline()
    share_cores()
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        keep_compiled(Path(cache))
        forget_installed()
        try:
            _start(cache)
            keep_installed(Path(cache))
        except Exception as error:  # noqa: BLE001 - whatever it is, serving will say it again
            print(f"note: the embedded model could not be prepared: {error}")
            return 0
    took_s = time.perf_counter() - began_s
    print(f"the embedded model and this processor's kernels are prepared ({took_s:.0f} s)")
    return 0


def _start(cache: str) -> None:
    import torch

    from daemon.config.schema import Config, DaemonConfig, InstanceSpec
    from daemon.engine.worker.start import start
    from daemon.runtime.model import find_model

    config = Config(instance=(InstanceSpec(device="cpu"),), daemon=DaemonConfig(cache=cache))
    load = find_model(config, progress=lambda share: _tell(CONVERTED * share, "conversion")).load(
        config, 0
    )
    load = msgspec.structs.replace(load, num_host_blocks=0)  # nobody is swapped
    with torch.inference_mode():
        start(load, lambda stage, share: _tell(CONVERTED + (1.0 - CONVERTED) * share, stage))


def _tell(share: float, what: str) -> None:
    """A line for `scripts/stage.py`."""
    print(f"progress {share:.2f} {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
