"""The imports of a worker: all done before it gets its model, so that a spare has them.

Nothing here touches a GPU: a process without a CUDA context holds none of its memory.
"""

import contextlib
import importlib
import os
import threading

from daemon.engine.worker.torch_stubs import leave_out

COMMON = (
    "daemon.engine.transfer.links",
    "daemon.engine.worker.start",
    "daemon.engine.worker.warm_up",
)
OF_KIND = {
    "cpu": ("daemon.engine.cpu.program", "daemon.engine.cpu.kernels"),
    "cuda": (
        "daemon.engine.cuda.attention",
        "daemon.engine.cuda.graphs",
        "daemon.engine.cuda.ops",
        "daemon.engine.cuda.products",
        "daemon.engine.cuda.sampler_ops",
        "daemon.engine.cuda.weights",
    ),
}
KINDS = tuple(OF_KIND)


def preload(kind: str) -> None:
    """Import torch, transformers and what computes on a `kind` of device: one of KINDS.

    What is missing for this kind alone is not missed here: `backend.choose_backend` says so.
    """
    leave_out()
    for module in COMMON:
        importlib.import_module(module)
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        for module in OF_KIND[kind]:
            importlib.import_module(module)


def preload_idly(kind: str) -> None:
    """`preload` with idle processor time, as far as the kernel can tell.

    In a thread of its own, since a thread of the idle class may never leave it without privileges;
    the one that computes later is not touched. Once the process that this one replaces is dead,
    nothing competes with it.
    """
    faults: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(OSError):  # refused: it imports at a normal priority
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            preload(kind)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            faults.append(error)

    thread = threading.Thread(target=work, name="preload")
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
