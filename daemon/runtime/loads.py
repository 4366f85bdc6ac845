"""Workers that load: how far each is, how long it will take, and how long it took."""

import threading
import time
from collections.abc import Iterator

import msgspec

from daemon.core.instance import WorkerState
from daemon.core.snapshot import InstanceStatus
from daemon.protocol.worker import WEIGHTS_END, Loading, Ready
from daemon.runtime.start_times import LoadClock, StartTimes

_COUNTED_STAGE = "weights"
_BAR_CELLS = 30
_MOST_SHOWN = 0.99
"""What still goes on is not done, however long it takes."""
CONVERSION = -1
"""In the place of an instance: a model's conversion, before there is a worker."""
_FIRST_STAGE = "imports"
"""What a spare has behind it: its start is no measure for others."""


class Loads:
    """Of all instances, by index. `remember` names them once the model is known."""

    def __init__(self) -> None:
        self.stage = "starting"  # what is said while no worker loads and nothing is converted
        self._times: StartTimes | None = None
        self._names: list[str] = []
        self._clocks: dict[int, LoadClock] = {}
        self._progress: dict[int, Loading] = {}
        self._lost_s: dict[int, float] = {}  # since when an instance has no worker that is ready

    def remember(self, times: StartTimes, names: list[str]) -> None:
        """From now on look starts up in `times` and keep them there, an instance under its name."""
        self._times, self._names = times, names

    def came(self, instance: int, progress: Loading) -> bool:
        """A worker tells how far it is; whether this is another stage than before."""
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
        """A GGUF file is being converted; whether it is a percent further than was heard last."""
        if share >= 1.0:
            self.lost(CONVERSION)
            return True
        before = self._progress.get(CONVERSION)
        self._progress[CONVERSION] = Loading("converting the model", share)
        clock = self._clocks.setdefault(CONVERSION, LoadClock({}))
        clock.reached("converting", time.monotonic(), share)
        return before is None or int(100 * share) > int(100 * before.fraction)

    def ended(self, instance: int) -> str:
        """A worker is ready: how long that took, all in all and stage by stage, in words."""
        self._progress.pop(instance, None)
        lost_s = self._lost_s.pop(instance, None)
        clock = self._clocks.pop(instance, None)
        now = time.monotonic()
        if clock is None:
            return "ready"
        stages = clock.took(now)
        if self._times is not None and _FIRST_STAGE in stages:
            self._times.keep(self._names[instance], stages)
            # Beside: answers wait for no disk.
            threading.Thread(target=self._times.write, name="start-times", daemon=True).start()
        each = ", ".join(f"{stage} {took_s:.1f} s" for stage, took_s in stages.items())
        if lost_s is not None:
            return f"ready {now - lost_s:.1f} s after the one before it was lost ({each})"
        return f"ready after {sum(stages.values()):.1f} s ({each})"

    def lost(self, instance: int) -> None:
        """A worker died, maybe while it loaded; another one begins anew."""
        self._progress.pop(instance, None)
        self._clocks.pop(instance, None)
        if instance != CONVERSION:
            self._lost_s.setdefault(instance, time.monotonic())  # until one is ready again

    def sentence(self) -> str:
        """What the one does that has furthest to go; empty where none loads."""
        told = self._furthest()
        if told is None:
            return ""
        progress, _, left_s = told
        text = f"loading: {progress.stage} {progress.fraction:.0%}"
        return text if left_s < 1.0 else f"{text}, about {left_s:.0f} s left"

    def bar(self) -> str:
        """The same as a line that is drawn again and again; empty where none loads."""
        told = self._furthest()
        if told is None:
            return ""
        progress, fraction, left_s = told
        done = round(_BAR_CELLS * fraction)
        left = f"  {left_s:.0f} s left" if left_s >= 1.0 else ""
        cells = "#" * done + "." * (_BAR_CELLS - done)
        return f"{progress.stage:<20} [{cells}] {fraction:>4.0%}{left}"

    def _furthest(self) -> tuple[Loading, float, float] | None:
        """Who has furthest to go, which share of that is done, by time if it is known, and seconds
        left; -1.0: not known.
        """
        if not self._progress:
            return None
        instance, least = min(self._progress.items(), key=lambda item: item[1].fraction)
        clock, now = self._clocks[instance], time.monotonic()
        fraction = clock.fraction(now) if instance != CONVERSION else -1.0
        shown = fraction if fraction >= 0.0 else least.fraction
        return least, min(shown, _MOST_SHOWN), clock.left_s(now)

    def shown(self, instance: int, one: InstanceStatus) -> InstanceStatus:
        """An instance's status with how far its worker has loaded."""
        progress = self._progress.get(instance)
        if progress is None or one.state == WorkerState.READY.value:
            return one
        return msgspec.structs.replace(
            one,
            load_stage=progress.stage,
            load_fraction=progress.fraction,
            load_left_s=self._clocks[instance].left_s(time.monotonic()),
        )


def describe(ready: Ready, ended: str) -> Iterator[str]:
    """What a worker that is ready holds, and how long it took to be so."""
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
