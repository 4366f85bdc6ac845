"""Workers that load: how far each is, how long it will take, and how long it took."""

import threading
import time

import msgspec

from daemon.core.instance import WorkerState
from daemon.core.snapshot import InstanceStatus
from daemon.engine.protocol import Loading
from daemon.runtime.start_times import LoadClock, StartTimes

_FIRST_STAGE = "imports"
"""What a spare has behind it: its start is no measure for others."""


class Loads:
    """Of all instances, by index. `remember` names them once the model is known."""

    def __init__(self) -> None:
        self._times: StartTimes | None = None
        self._names: list[str] = []
        self._clocks: dict[int, LoadClock] = {}
        self._progress: dict[int, Loading] = {}

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
        self._clocks[instance].reached(progress.stage, time.monotonic())
        return before is None or before.stage != progress.stage

    def ended(self, instance: int) -> str:
        """A worker is ready: what its stages took, in words."""
        self._progress.pop(instance, None)
        clock = self._clocks.pop(instance, None)
        if clock is None:
            return ""
        stages = clock.took(time.monotonic())
        if self._times is not None and _FIRST_STAGE in stages:
            self._times.keep(self._names[instance], stages)
            # Beside: answers wait for no disk.
            threading.Thread(target=self._times.write, name="start-times", daemon=True).start()
        return ", ".join(f"{stage} {took_s:.1f} s" for stage, took_s in stages.items())

    def lost(self, instance: int) -> None:
        """A worker died, maybe while it loaded; another one begins anew."""
        self._progress.pop(instance, None)
        self._clocks.pop(instance, None)

    def sentence(self) -> str:
        """What the one does that has furthest to go; empty where none loads."""
        if not self._progress:
            return ""
        instance, least = min(self._progress.items(), key=lambda item: item[1].fraction)
        text = f"loading: {least.stage} {least.fraction:.0%}"
        left_s = self._clocks[instance].left_s(time.monotonic())
        return text if left_s < 1.0 else f"{text}, about {left_s:.0f} s left"

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
