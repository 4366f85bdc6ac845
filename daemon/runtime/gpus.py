"""The GPUs' own figures, read through NVML once a second in a thread; nothing is ever set."""

import logging
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from daemon.protocol.control import GpuStatus

INTERVAL_S = 1.0
REOPEN_S = 3.0
STOP_S = 0.5
"""How long the end waits for a driver that does not answer; the thread is a daemon then."""

Figure = TypeVar("Figure", int, float)

logger = logging.getLogger(__name__)


class LostError(Exception):
    """No card answers any more; the text is the driver's."""


class GpuReader:
    """NVML from `nvmlInit` to `nvmlShutdown`. Raises ImportError, or NVML's own errors."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: ModuleType = pynvml
        pynvml.nvmlInit()

    def read_each(self, cards: Sequence[str]) -> tuple[GpuStatus | None, ...]:
        """Read every card, None for one that does not answer. Raises LostError if none does."""
        statuses: list[GpuStatus | None] = []
        failure = ""
        for card in cards:
            try:
                statuses.append(self.read(card))
            except self._nvml.NVMLError as error:
                statuses.append(None)
                failure = str(error)
        if not any(statuses):
            raise LostError(failure)
        return tuple(statuses)

    def read(self, card: str) -> GpuStatus:
        """Read one card, by UUID; figures that it does not support are None."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(card)
        name = self._asked(nvml.nvmlDeviceGetName, handle)
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._asked(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = self._asked(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        busy = self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuStatus(
            name=name.decode(errors="replace") if isinstance(name, bytes) else name,
            memory_used_bytes=memory and int(memory.used),
            memory_total_bytes=memory and int(memory.total),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            temperature_c=self._asked(nvml.nvmlDeviceGetTemperature, handle, 0),
            busy_percent=busy and int(busy.gpu),
        )

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def _asked(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The driver's answer; None where the card or the rights do not allow one."""
        nvml = self._nvml
        try:
            return question(*arguments)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_InvalidArgument,  # a slice of a card has no temperature of its own
        ):
            return None


def together(statuses: Sequence[GpuStatus | None]) -> GpuStatus | None:
    """The figures of an instance's cards as of one: sums, the highest temperature, the mean load.
    None where it has no card, or one of them does not answer.
    """
    known = [status for status in statuses if status is not None]
    if len(known) < 2 or len(known) < len(statuses):
        return known[0] if len(known) == len(statuses) == 1 else None
    names = dict.fromkeys(status.name or "" for status in known)
    busy = _all_of([status.busy_percent for status in known])
    temperatures = _all_of([status.temperature_c for status in known])
    return GpuStatus(
        name=f"{len(known)} x {' + '.join(names)}" if len(names) == 1 else " + ".join(names),
        memory_used_bytes=_sum_of([status.memory_used_bytes for status in known]),
        memory_total_bytes=_sum_of([status.memory_total_bytes for status in known]),
        power_w=_sum_of([status.power_w for status in known]),
        power_limit_w=_sum_of([status.power_limit_w for status in known]),
        temperature_c=max(temperatures, default=None),
        busy_percent=round(sum(busy) / len(busy)) if busy else None,
    )


def _all_of(figures: Sequence[Figure | None]) -> list[Figure]:
    """The figures, none where one is not known."""
    known = [figure for figure in figures if figure is not None]
    return known if len(known) == len(figures) else []


def _sum_of(figures: Sequence[Figure | None]) -> Figure | None:
    known = _all_of(figures)
    return sum(known[1:], known[0]) if known else None


class GpuWatch:
    """Keeps `latest` fresh: one status per instance, of all its cards together, None where it has
    none or one of them cannot be read.

    `cards` are UUIDs. While a driver is absent, denied or lost only the figures are missing; it is
    tried again every `REOPEN_S`.
    """

    def __init__(self, cards: Sequence[Sequence[str]]) -> None:
        """`cards`: of each instance."""
        self._cards = tuple(cards)
        self.latest: tuple[GpuStatus | None, ...] = (None,) * len(self._cards)
        self._stopped = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        if any(self._cards):
            self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read_until_stopped()
            except ImportError:
                logger.info("GPU figures need the package nvidia-ml-py; there are none")
                return
            except Exception as error:  # noqa: BLE001 - NVML's errors are its own classes
                self._say(f"GPU figures cannot be read: {error}; they are tried again")
            self.latest = (None,) * len(self._cards)
            self._stopped.wait(REOPEN_S)

    def _read_until_stopped(self) -> None:
        reader = GpuReader()
        try:
            while not self._stopped.is_set():
                each = list(dict.fromkeys(card for cards in self._cards for card in cards))
                read = dict(zip(each, reader.read_each(each), strict=True))
                self.latest = tuple(together([read[card] for card in own]) for own in self._cards)
                self._say("GPU figures are read")
                self._stopped.wait(INTERVAL_S)
        finally:
            reader.close()

    def _say(self, what: str) -> None:
        """Log a state once."""
        if what != self._said:
            self._said = what
            logger.info("%s", what)
