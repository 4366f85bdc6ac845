"""A candidate: the instances of a deployment, their roles, and the knobs of their scheduler."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod

import msgspec

from daemon.cost.profile import Profile
from daemon.lab.planner.price import DEFAULT_PRICES, dollars_per_hour
from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.state.role import AUTO, Role


@cache
def profile_named(name: str) -> Profile:
    """A profile by name or file, read once. Raises ProfileError."""
    return load_profile(name)


class CandidatePool(msgspec.Struct, frozen=True, kw_only=True):
    """Equal instances of one role, on one kind of device."""

    profile: str  # a name or a file; with tp, pp and the format of the weights
    device: str  # its kind
    tp: int = 1
    pp: int = 1
    count: int = 1
    role: str = Role.MIXED.value
    power_cap: float = 1.0  # share of the devices' limit
    quantize: str = ""  # format of the weights; "": as the model's

    @property
    def num_devices(self) -> int:
        """Devices of all its instances."""
        return self.tp * self.pp * self.count

    @property
    def text(self) -> str:
        """A line such as `2 x a100-80g tp2 prefill`."""
        parts = [f"{self.count} x {self.device}"]
        parts += [f"tp{self.tp}"] * (self.tp > 1) + [f"pp{self.pp}"] * (self.pp > 1)
        parts += [self.quantize] * bool(self.quantize)
        parts += [self.role] * (self.role != Role.MIXED.value)
        parts += [f"at {100 * self.power_cap:g} %"] * (self.power_cap < 1.0)
        return " ".join(parts)


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a scheduler that a candidate may set; 0 and "" leave the scenario's own."""

    policy: str = ""
    max_batch_tokens: int = 0  # of a step; 0: the policy's own
    prefill_chunk: int = 0  # 0: as max_batch_tokens
    max_running: int = 0
    kv_bytes: float = 0.0  # of each instance's block pool; 0: from the memory formula

    @property
    def text(self) -> str:
        """The values that are set, in one line."""
        named = (
            ("budget", self.max_batch_tokens),
            ("chunk", self.prefill_chunk),
            ("running", self.max_running),
            ("kv bytes", self.kv_bytes),
        )
        parts = [
            self.policy,
            *(f"{name} {value:g}" for name, value in named if value),
        ]
        return ", ".join(part for part in parts if part)


class PlanCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that can be simulated, and written as a configuration."""

    pools: tuple[CandidatePool, ...]
    knobs: Knobs = Knobs()
    roles: str = Role.MIXED.value  # who sets roles: mixed (each as its pool says) | auto (the load)

    @property
    def num_devices(self) -> int:
        """Devices of all pools."""
        return sum(pool.num_devices for pool in self.pools)

    @property
    def text(self) -> str:
        """One line that tells it from all others."""
        automatic = ["roles by the load"] if self.roles == AUTO else []
        return ", ".join([*(pool.text for pool in self.pools), self.knobs.text, *automatic])

    def profiles(self) -> list[tuple[CandidatePool, Profile]]:
        """Each pool with its profile. Raises ProfileError."""
        return [(pool, profile_named(pool.profile)) for pool in self.pools]

    def power_w(self) -> float:
        """Watts provisioned: the devices' limits under their caps (Splitwise section IV-D)."""
        return sum(
            profile.device.power_w * pool.num_devices * pool.power_cap
            for pool, profile in self.profiles()
        )

    def rent(self, prices: Mapping[str, float] = DEFAULT_PRICES) -> float:
        """Dollars per hour. Raises PlannerError where a device has no price."""
        return sum(
            dollars_per_hour(profile, pool.count, prices) for pool, profile in self.profiles()
        )


def scenario_of(base: Scenario, candidate: PlanCandidate) -> Scenario:
    """The scenario of a candidate; what it leaves open is that of `base`."""
    knobs, replace = candidate.knobs, msgspec.structs.replace
    open_group = base.instance[0] if base.instance else InstanceGroup(profile="")
    groups = tuple(
        replace(
            open_group,
            profile=pool.profile,
            count=pool.count,
            role=pool.role,
            power_cap=pool.power_cap,
            kv_bytes=knobs.kv_bytes or open_group.kv_bytes,
        )
        for pool in candidate.pools
    )
    limits = replace(
        base.limits,
        max_batch_tokens=knobs.max_batch_tokens or base.limits.max_batch_tokens,
        prefill_chunk=knobs.prefill_chunk or base.limits.prefill_chunk,
        max_running=knobs.max_running or base.limits.max_running,
    )
    roles = AUTO if candidate.roles == AUTO else ""
    policy = knobs.policy or base.policy
    return replace(base, instance=groups, limits=limits, policy=policy, roles=roles)


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The devices there are, the instances that they can make, and the values to try."""

    units: tuple[CandidatePool, ...]  # one instance of each kind: count 1, mixed, without a cap
    devices: dict[str, int]  # how many there are of each kind
    knobs: tuple[Knobs, ...] = (Knobs(),)
    caps: tuple[float, ...] = (1.0,)  # of mixed and of decode instances
    split: bool = True  # prefill and decode on instances of their own, too
    mixed: bool = True  # instances that do both
    automatic: bool = False  # roles by the load, too
    partial: bool = False  # layouts that leave devices idle, too

    def candidates(self) -> Iterator[PlanCandidate]:
        """Every candidate, each once, in a fixed order."""
        for pools in dict.fromkeys(self._layouts()):
            for knobs in self.knobs:
                yield PlanCandidate(pools=pools, knobs=knobs)
                if self.automatic and len(pools) == 1 and pools[0].count > 1:
                    yield PlanCandidate(pools=pools, knobs=knobs, roles=AUTO)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return sum(1 for _ in self.candidates())

    def _layouts(self) -> Iterator[tuple[CandidatePool, ...]]:
        if self.mixed:
            for units in self._choices():
                for counts in self._counts(units):
                    yield from self._capped(units, counts)
        if self.split:
            for prefill in self.units:
                for decode in self.units:
                    yield from self._splits(prefill, decode)

    def _choices(self) -> Iterator[tuple[CandidatePool, ...]]:
        """One kind of instance on one kind of device, and one on each kind of device."""
        yield from ((unit,) for unit in self.units)
        kinds = [[u for u in self.units if u.device == kind] for kind in self.devices]
        if len(kinds) < 2 or not prod(map(len, kinds)):
            return
        chosen: list[tuple[CandidatePool, ...]] = [()]
        for units in kinds:
            chosen = [(*before, unit) for before in chosen for unit in units]
        yield from chosen

    def _counts(self, units: tuple[CandidatePool, ...]) -> Iterator[tuple[int, ...]]:
        counts: list[tuple[int, ...]] = [()]
        for unit in units:
            most = self.devices[unit.device] // unit.num_devices
            tried = range(1, most + 1) if self.partial else range(max(1, most), most + 1)
            counts = [(*before, count) for before in counts for count in tried]
        yield from counts

    def _capped(
        self, units: tuple[CandidatePool, ...], counts: tuple[int, ...]
    ) -> Iterator[tuple[CandidatePool, ...]]:
        for cap in self.caps:
            yield tuple(
                msgspec.structs.replace(unit, count=count, power_cap=cap)
                for unit, count in zip(units, counts, strict=True)
            )

    def _splits(
        self, prefill: CandidatePool, decode: CandidatePool
    ) -> Iterator[tuple[CandidatePool, ...]]:
        have = self.devices
        for num_prefill in range(1, have[prefill.device] // prefill.num_devices + 1):
            left = have[decode.device]
            if prefill.device == decode.device:
                left -= num_prefill * prefill.num_devices
            most = left // decode.num_devices
            if not self.partial and prefill.device != decode.device:
                is_full = num_prefill == have[prefill.device] // prefill.num_devices
                if not is_full:
                    continue
            for num_decode in range(1 if self.partial else max(1, most), most + 1):
                for cap in self.caps:
                    yield (
                        _with(prefill, num_prefill, Role.PREFILL),
                        _with(decode, num_decode, Role.DECODE, cap),
                    )


def _with(unit: CandidatePool, count: int, role: Role, cap: float = 1.0) -> CandidatePool:
    return msgspec.structs.replace(unit, count=count, role=role.value, power_cap=cap)


def unit_of(name: str, quantize: str = "") -> CandidatePool:
    """One instance of the profile that has this name or file. Raises ProfileError."""
    profile = profile_named(name)
    return CandidatePool(
        profile=name,
        device=profile.device.name,
        tp=profile.tp,
        pp=profile.pp,
        quantize=quantize,
    )


def knobs_of(
    policies: Iterable[str] = ("",),
    budgets: Iterable[int] = (0,),
    chunks: Iterable[int] = (0,),
    running: Iterable[int] = (0,),
    pools: Iterable[float] = (0.0,),
) -> tuple[Knobs, ...]:
    """Every combination of values; a chunk is never above the budget."""
    return tuple(
        Knobs(
            policy=policy,
            max_batch_tokens=budget,
            prefill_chunk=chunk,
            max_running=most,
            kv_bytes=kv_bytes,
        )
        for policy in policies
        for budget in budgets
        for chunk in chunks
        if not budget or chunk <= budget
        for most in running
        for kv_bytes in pools
    )
