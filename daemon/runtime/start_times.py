"""How long each stage of a worker's start took, and the time left by its last start."""

import json
import logging
import threading
from pathlib import Path

from daemon.base.files import write_whole
from daemon.protocol.worker import Load

log = logging.getLogger(__name__)

Stages = dict[str, float]
"""Seconds by stage, in the order of the stages."""

_ENOUGH = 0.05
"""Share of a stage after which its speed is known."""

_MOST_S = 86_400
"""Longest time of a stage that is believed; it refuses infinities and NaN, too."""
MOST_KEPT = 64
"""Models and devices that are remembered."""


def start_name(load: Load) -> str:
    """The name under which a worker's start times are kept: others load as long."""
    kind = "pp" if load.stage_layers else "tp"
    ranks = f" {kind}{load.world_size}" if load.world_size > 1 else ""
    return f"{load.model} {load.dtype} {load.device}{ranks}"


class LoadClock:
    """One worker's start as it goes; time comes in as an argument."""

    def __init__(self, last: Stages) -> None:
        self._last = last
        self._began: list[tuple[str, float]] = []
        self._share = 0.0
        self._share_s = 0.0

    def reached(self, stage: str, now: float, share: float = 0.0) -> None:
        """The start has reached this stage now. `share`: how much of the stage is done, where that
        is counted.
        """
        if not self._began or self._began[-1][0] != stage:
            self._began.append((stage, now))
        self._share, self._share_s = share, now

    def took(self, now: float) -> Stages:
        """Seconds of each stage so far."""
        ends = [began for _, began in self._began[1:]] + [now]
        return {stage: end - began for (stage, began), end in zip(self._began, ends, strict=True)}

    def left_s(self, now: float) -> float:
        """Seconds until it is ready; -1.0: not known.

        A stage with a counted share goes on at its own speed, any other one as at the last start.
        Stages that never came before take no time here.
        """
        if not self._began:
            return -1.0
        stage, began = self._began[-1]
        order = list(self._last)
        later = order[order.index(stage) + 1 :] if stage in order else []
        if self._share >= _ENOUGH and self._share_s > began:
            rate_s = (self._share_s - began) / self._share
            left_s = rate_s * (1.0 - self._share) - (now - self._share_s)
        elif stage in order:
            left_s = self._last[stage] - (now - began)
        else:
            return -1.0
        return max(0.0, left_s) + sum(self._last[name] for name in later)

    def fraction(self, now: float) -> float:
        """The share of the whole start that is done, by time; -1.0 where later stages' time is not
        known.
        """
        left_s = self.left_s(now)
        if left_s < 0.0 or self._began[-1][0] not in self._last:
            return -1.0
        elapsed_s = now - self._began[0][1]
        return elapsed_s / (elapsed_s + left_s) if elapsed_s + left_s > 0.0 else 0.0


class StartTimes:
    """The last starts, in a small file. A file that cannot be read or written is ignored.

    It is read here and written by `write`: both may wait for a disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()
        self._new: dict[str, Stages] = {}
        self._writing = threading.Lock()

    def last(self, what: str) -> Stages:
        """The stages of the last start of `what`; empty where none is known."""
        stages = self._known.get(what)
        if not isinstance(stages, dict):
            return {}
        return {
            stage: float(took_s)
            for stage, took_s in stages.items()
            if isinstance(took_s, int | float) and 0 <= took_s <= _MOST_S
        }

    def keep(self, what: str, stages: Stages) -> None:
        """Remember a start; the next `write` keeps it beyond this process."""
        kept = {stage: round(took_s, 3) for stage, took_s in stages.items()}
        self._known[what] = kept
        self._new = {**self._new, what: kept}  # another thread may be writing the one before

    def write(self) -> None:
        """Write the new starts, beside those that other processes wrote meanwhile."""
        with self._writing:
            known, new = self._read(), self._new
            newest = {**{what: known[what] for what in known if what not in new}, **new}
            newest = dict(list(newest.items())[-MOST_KEPT:])
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, json.dumps(newest, indent=1).encode())
            except OSError as error:
                log.warning("how long this start took is not kept: %s", error)

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}
