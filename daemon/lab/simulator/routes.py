"""The routes of transfers between simulated instances: their links, and the links' speeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.cost.profile import LinkSpec, Profile
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.scenario import HandoffSpec

_NONE = LinkSpec(0.0)


@dataclass(frozen=True, slots=True)
class TransferRoute:
    """The links that a transfer uses."""

    links: tuple[str, ...]
    latency_s: float  # from the last byte's start to its arrival


@dataclass(frozen=True, slots=True)
class _Ports:
    """One instance's links, of all its devices together: each device has a shard of every block."""

    name: str
    block_bytes: int
    direct: LinkSpec
    host: LinkSpec


class Routes:
    """The routes between all pairs of instances. A route is direct where the devices of both have a
    peer link; else it goes out over the source's host link and in over the target's. Between pools
    of different blocks, or without known links, there is none.
    """

    def __init__(
        self,
        names: Sequence[str],
        profiles: Sequence[Profile],
        pools: Sequence[Pool],
        block_size: int,
        spec: HandoffSpec | None = None,
    ) -> None:
        self.block_size = block_size  # tokens
        self.spec = spec or HandoffSpec()
        self._ports = [
            _ports(*port, self.spec) for port in zip(names, profiles, pools, strict=True)
        ]
        self._num_layers = [profile.model.num_layers for profile in profiles]

    def __len__(self) -> int:
        return len(self._ports)

    def block_bytes(self, instance: int) -> int:
        """Bytes of one of its blocks, over all its devices."""
        return self._ports[instance].block_bytes

    def num_layers(self, instance: int) -> int:
        """Layers of its model."""
        return self._num_layers[instance]

    def name(self, instance: int) -> str:
        """The name of the instance."""
        return self._ports[instance].name

    def bytes_per_s(self) -> dict[str, float]:
        """The speed of every link that a route may use."""
        speeds = {}
        for ports in self._ports:
            for kind, link in (("link", ports.direct), ("host link", ports.host)):
                if link.bytes_per_s:
                    speeds[f"{ports.name} {kind} out"] = link.bytes_per_s
                    speeds[f"{ports.name} {kind} in"] = link.bytes_per_s
        return speeds

    def between(self, source: int, target: int, from_host: bool = False) -> TransferRoute | None:
        """The route from an instance's KV pool, or its host pool, to another's KV pool."""
        here, there = self._ports[source], self._ports[target]
        if here.block_bytes != there.block_bytes:
            return None
        if from_host and there.host.bytes_per_s:
            return TransferRoute((f"{there.name} host link in",), there.host.latency_s)
        if here.direct.bytes_per_s and there.direct.bytes_per_s:
            latency_s = max(here.direct.latency_s, there.direct.latency_s)
            return TransferRoute((f"{here.name} link out", f"{there.name} link in"), latency_s)
        if here.host.bytes_per_s and there.host.bytes_per_s:
            latency_s = here.host.latency_s + there.host.latency_s
            return TransferRoute(
                (f"{here.name} host link out", f"{there.name} host link in"), latency_s
            )
        return None


def _ports(name: str, profile: Profile, pool: Pool, spec: HandoffSpec) -> _Ports:
    device, count = profile.device, profile.num_devices
    if spec.bytes_per_s:
        latency_s = device.peer_link.latency_s if spec.latency_s is None else spec.latency_s
        direct = LinkSpec(spec.bytes_per_s, latency_s)
        return _Ports(name, pool.block_bytes, direct, _of_all(device.host_link, count, None))
    return _Ports(
        name,
        pool.block_bytes,
        _of_all(device.peer_link, count, spec.latency_s),
        _of_all(device.host_link, count, spec.latency_s),
    )


def _of_all(link: LinkSpec, count: int, latency_s: float | None) -> LinkSpec:
    """The links of `count` devices as one."""
    if not link.bytes_per_s:
        return _NONE
    return LinkSpec(link.bytes_per_s * count, link.latency_s if latency_s is None else latency_s)
