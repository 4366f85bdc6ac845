"""Workers that load: their progress, the time left, and the time it took."""

import threading
import time
from collections.abc import Iterator

import msgspec

from daemon.core.instance.instance import WorkerState
from daemon.core.values.snapshot import InstanceStatus
from daemon.protocol.worker import WEIGHTS_END, Loading, Ready
from daemon.runtime.start_times import LoadClock, StartTimes

_COUNTED_STAGE = "weights"
_BAR_CELLS = 30
_MOST_SHOWN = 0.99
"""Most that is shown of work that still goes on, however long it takes."""
CONVERSION = -1
"""Stands for the instance while a model is converted, before there is a worker."""
_FIRST_STAGE = "imports"
"""A stage that a spare worker has behind it: its start is no measure for others."""


class Loads:
    """All instances' loads, by index. `remember` names the instances once the model is known."""

    def __init__(self) -> None:
        self.stage = "starting"  # shown while no worker loads and nothing is converted
        self._times: StartTimes | None = None
        self._names: list[str] = []
        self._clocks: dict[int, LoadClock] = {}
        self._progress: dict[int, Loading] = {}
        self._lost_s: dict[int, float] = {}  # time at which an instance lost its ready worker

    def remember(self, times: StartTimes, names: list[str]) -> None:
        """From now on look up and store start times in `times`, under each instance's name."""
        self._times, self._names = times, names

    def came(self, instance: int, progress: Loading) -> bool:
        """Take a worker's progress; return whether its stage has changed."""
        before = self._progress.get(instance)
        self._progress[instance] = progress
        if instance not in self._clocks:
            last = self._times.last(self._names[instance]) if self._times is not None else {}
            self._clocks[instance] = LoadClock(last)
        share = progress.fraction / WEIGHTS_END if progress.stage == _COUNTED_STAGE else 0.0
        self._clocks[instance].reached(progress.stage, time.monotonic(), share)
        self.stage = self.sentence()
        return before is None or before.stage != progress.stage

    def converts(self, share: float) -> bool:
        """Take the progress of a GGUF file's conversion; return whether it grew by a percent."""
        if share >= 1.0:
            self.lost(CONVERSION)
            return True
        before = self._progress.get(CONVERSION)
        self._progress[CONVERSION] = Loading("converting the model", share)
        clock = self._clocks.setdefault(CONVERSION, LoadClock({}))
        clock.reached("converting", time.monotonic(), share)
        return before is None or int(100 * share) > int(100 * before.fraction)

    def ended(self, instance: int) -> str:
        """A worker is ready: describe how long that took, in all and by stage."""
        self._progress.pop(instance, None)
        lost_s = self._lost_s.pop(instance, None)
        clock = self._clocks.pop(instance, None)
        now = time.monotonic()
        if clock is None:
            return "ready"
        stages = clock.took(now)
        if self._times is not None and _FIRST_STAGE in stages:
            self._times.keep(self._names[instance], stages)
            # In a thread: answers do not wait for the disk.
            threading.Thread(target=self._times.write, name="start-times", daemon=True).start()
        each = ", ".join(f"{stage} {took_s:.1f} s" for stage, took_s in stages.items())
        if lost_s is not None:
            return f"ready {now - lost_s:.1f} s after the one before it was lost ({each})"
        return f"ready after {sum(stages.values()):.1f} s ({each})"

    def lost(self, instance: int) -> None:
        """A worker died, maybe while it loaded; the next begins anew."""
        self._progress.pop(instance, None)
        self._clocks.pop(instance, None)
        if instance != CONVERSION:
            self._lost_s.setdefault(instance, time.monotonic())  # until one is ready again

    def sentence(self) -> str:
        """The progress of the slowest load; empty where none loads."""
        furthest = self._furthest()
        if furthest is None:
            return ""
        progress, _, left_s = furthest
        text = f"loading: {progress.stage} {progress.fraction:.0%}"
        return text if left_s < 1.0 else f"{text}, about {left_s:.0f} s left"

    def bar(self) -> str:
        """The same as a progress bar; empty where none loads."""
        furthest = self._furthest()
        if furthest is None:
            return ""
        progress, fraction, left_s = furthest
        done = round(_BAR_CELLS * fraction)
        left = f"  {left_s:.0f} s left" if left_s >= 1.0 else ""
        cells = "#" * done + "." * (_BAR_CELLS - done)
        return f"{progress.stage:<20} [{cells}] {fraction:>4.0%}{left}"

    def _furthest(self) -> tuple[Loading, float, float] | None:
        """The slowest load, its share done (by time if that is known), and seconds left; -1.0: not
        known.
        """
        if not self._progress:
            return None
        instance, least = min(self._progress.items(), key=lambda item: item[1].fraction)
        clock, now = self._clocks[instance], time.monotonic()
        fraction = clock.fraction(now) if instance != CONVERSION else -1.0
        shown = fraction if fraction >= 0.0 else least.fraction
        return least, min(shown, _MOST_SHOWN), clock.left_s(now)

    def shown(self, instance: int, status: InstanceStatus) -> InstanceStatus:
        """An instance's status with how far its worker has loaded."""
        progress = self._progress.get(instance)
        if progress is None or status.state == WorkerState.READY.value:
            return status
        return msgspec.structs.replace(
            status,
            load_stage=progress.stage,
            load_fraction=progress.fraction,
            load_left_s=self._clocks[instance].left_s(time.monotonic()),
        )


def describe(ready: Ready, ended: str) -> Iterator[str]:
    """Lines about a ready worker: its pools, its weights, and how long it took to start."""
    yield (
        f"{ready.num_blocks} blocks of {ready.block_bytes} bytes, weights {ready.weight_bytes} "
        f"bytes, {ended}"
    )
    if ready.num_host_blocks:
        copy_ms = 1e3 * ready.copy_block_s
        yield (
            f"{ready.num_host_blocks} blocks of {ready.host_block_bytes} bytes in host memory, "
            f"{copy_ms:.2f} ms to copy one"
        )
