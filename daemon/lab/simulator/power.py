"""Power and energy of an instance's devices, step by step."""

from daemon.cost.profile import PowerSpec, Profile
from daemon.cost.work import StepWork
from daemon.lab.simulator.scenario import ScenarioError


class PowerMeter:
    """An instance's power: a share of its limit by phase and load, or the cap; idle
    between steps.
    """

    def __init__(self, profile: Profile, cap: float) -> None:
        self._spec = profile.power
        self._cap = cap
        self._limit_w = profile.device.power_w * profile.num_devices
        self._idle_w = profile.device.idle_w * profile.num_devices
        self._busy_s = 0.0
        self._busy_j = 0.0
        self.capped_s = 0.0
        """Time of steps in which the cap bound: they would have drawn more."""
        self._decode_share: dict[int, float] = {}  # by how many decodes a step has

    def slowdown(self, work: StepWork) -> float:
        """The factor on a step's time at the cap."""
        spec = self._spec
        if spec is None or self._cap >= 1.0:
            return 1.0
        curve = spec.prefill_slowdown if _is_prefill(work) else spec.decode_slowdown
        return curve(self._cap)

    def spend(self, work: StepWork, duration_s: float) -> None:
        """Count a step's energy."""
        self._busy_s += duration_s
        if self._spec is not None:
            share = self._share(self._spec, work)
            self._busy_j += self._watts(share) * duration_s
            self.capped_s += duration_s if share > self._cap else 0.0

    def of_decodes(self, num_decodes: int) -> tuple[float, float, bool]:
        """(factor on the time, watts, whether the cap binds) of a step of so many decodes."""
        spec = self._spec
        if spec is None:
            return 1.0, 0.0, False
        work = StepWork(num_decodes, 0)
        share = self._share(spec, work)
        return self.slowdown(work), self._watts(share), share > self._cap

    def spend_decodes(self, duration_s: float, watts: float, is_capped: bool) -> None:
        """Count the energy of a step of decodes alone, with what `of_decodes` gave."""
        self._busy_s += duration_s
        self._busy_j += watts * duration_s
        if is_capped:
            self.capped_s += duration_s

    def _share(self, spec: PowerSpec, work: StepWork) -> float:
        """A step's power without a cap, as a share of the limit."""
        if _is_prefill(work):
            return spec.prefill_share(work.num_tokens - work.num_decodes)
        share = self._decode_share.get(work.num_decodes)
        if share is None:
            share = self._decode_share[work.num_decodes] = spec.decode_share(work.num_decodes)
        return share

    def _watts(self, share: float) -> float:
        return max(min(share, self._cap) * self._limit_w, self._idle_w)

    def energy_j(self, run_s: float) -> float | None:
        """Energy over the run; None where the profile has no power figures."""
        if self._spec is None or not self._limit_w:
            return None
        return self._busy_j + self._idle_w * max(0.0, run_s - self._busy_s)


def check_cap(profile: Profile, cap: float) -> None:
    """Refuse a cap whose slowdown the profile does not know. Raises ScenarioError."""
    if cap >= 1.0:
        return
    spec = profile.power
    if spec is None:
        raise ScenarioError(
            f"instance.power_cap {cap:g}: {profile.name} says nothing of power, so that its "
            "slowdown is unknown"
        )
    least = max(spec.prefill_slowdown.at[0], spec.decode_slowdown.at[0])
    if cap < least:
        raise ScenarioError(
            f"instance.power_cap {cap:g}: {profile.name} was measured at caps from {least:g} on"
        )


def _is_prefill(work: StepWork) -> bool:
    """Whether a step is a prefill: it belongs to the phase with more of its tokens."""
    return work.num_tokens > 2 * work.num_decodes
