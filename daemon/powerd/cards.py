"""The cards' power limits and figures, through NVML; no other file here knows NVML."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from daemon.powerd.frames import PowerError

SW_POWER_CAP = 0x4
"""The bit for the power limit in NVML's reasons for lower clocks."""

log = logging.getLogger(__name__)


class CardPower(NamedTuple):
    """A card's limit now, and the limits that it can have, in milliwatts."""

    device: str
    """The UUID as NVML itself writes it, however the card was named."""
    cap_mw: int
    min_mw: int
    max_mw: int
    default_mw: int


class CardUse(NamedTuple):
    """The power that a card draws; None is a figure that it does not report."""

    power_mw: int
    energy_mj: int | None
    binding: bool | None


class PowerCards:
    """NVML, opened when it is first needed, and again after it failed.

    While it is open the driver keeps the cards' settings, limits included. Every method raises
    PowerError where a card, the driver or the library is missing, refuses or fails.
    """

    def __init__(self) -> None:
        self._nvml: ModuleType | None = None

    def look(self, device: str) -> CardPower:
        """A card's limits."""
        with self._asked(device, "its power limits cannot be read") as (nvml, handle):
            min_mw, max_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            return CardPower(
                device=str(nvml.nvmlDeviceGetUUID(handle)),
                cap_mw=int(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
                min_mw=int(min_mw),
                max_mw=int(max_mw),
                default_mw=int(nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
            )

    def use(self, device: str) -> CardUse:
        """The power that a card draws, and whether its limit slows it down."""
        with self._asked(device, "its power cannot be read") as (nvml, handle):
            reasons = self._told(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
            old_name = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
            if reasons is None and old_name is not None:  # drivers before 535 know that one alone
                reasons = self._told(old_name, handle)
            return CardUse(
                power_mw=int(nvml.nvmlDeviceGetPowerUsage(handle)),
                energy_mj=self._told(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
                binding=None if reasons is None else bool(reasons & SW_POWER_CAP),
            )

    def set_cap(self, device: str, cap_mw: int) -> None:
        """Set a card's limit, which must be one that it can have."""
        with self._asked(device, "its power limit cannot be set") as (nvml, handle):
            nvml.nvmlDeviceSetPowerManagementLimit(handle, cap_mw)

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None

    @contextlib.contextmanager
    def _asked(self, device: str, failed: str) -> Iterator[tuple[ModuleType, Any]]:
        """NVML and a card's handle. No handle is kept: a card may be lost and come back."""
        nvml = self._opened()
        try:
            yield nvml, nvml.nvmlDeviceGetHandleByUUID(device)
        except nvml.NVMLError as error:
            if not isinstance(error, _harmless(nvml)):
                self.close()
            raise PowerError(f"{device}: {failed}: {error}") from error

    def _opened(self) -> ModuleType:
        if self._nvml is not None:
            return self._nvml
        try:
            import pynvml
        except ImportError as error:
            raise PowerError("the package nvidia-ml-py is not installed") from error
        nvml: ModuleType = pynvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise PowerError(f"NVML cannot be used: {error}") from error
        self._nvml = nvml
        return nvml

    def _told(self, question: Callable[[Any], int], handle: Any) -> int | None:
        """A figure that not every card and driver has."""
        assert self._nvml is not None
        try:
            return int(question(handle))
        except _harmless(self._nvml):
            return None


def _harmless(nvml: ModuleType) -> tuple[type[Exception], ...]:
    """Errors of one question or card, after which NVML still works."""
    return (
        nvml.NVMLError_NotFound,
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_InsufficientPower,
    )
