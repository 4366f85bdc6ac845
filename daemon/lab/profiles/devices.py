"""Devices of profiles: data-sheet peaks, and links' real copy rates.

Memory is what the driver reports. Links are one direction, pinned memory: PCIe 4.0 x16 carries
31.5e9 bytes/s and copies at about 25e9, PCIe 5.0 twice that; NVLink 3 and 4 carry 300e9 and 450e9
bytes/s and copy at about 85 % of it. Idle power is typical, the limit is the data sheet's.
"""

from daemon.base.nearest import unknown
from daemon.cost.profile import DeviceSpec, LinkSpec
from daemon.lab.profiles.errors import ProfileError

_MIB = 1 << 20

_ALL = (
    DeviceSpec(
        name="a100-80g",
        memory_bytes=81_920 * _MIB,
        flops=312e12,
        bandwidth_bytes_per_s=2.039e12,
        host_link=LinkSpec(25e9, 10e-6),
        peer_link=LinkSpec(255e9, 10e-6),
        idle_w=60.0,
        power_w=400.0,
    ),
    DeviceSpec(
        name="h100",
        memory_bytes=81_559 * _MIB,
        flops=989e12,
        bandwidth_bytes_per_s=3.35e12,
        host_link=LinkSpec(50e9, 10e-6),
        peer_link=LinkSpec(380e9, 10e-6),
        idle_w=70.0,
        power_w=700.0,
    ),
    DeviceSpec(
        name="h200",
        memory_bytes=143_771 * _MIB,
        flops=989e12,
        bandwidth_bytes_per_s=4.8e12,
        host_link=LinkSpec(50e9, 10e-6),
        peer_link=LinkSpec(380e9, 10e-6),
        idle_w=75.0,
        power_w=700.0,
    ),
    DeviceSpec(  # no NVLink: siblings copy through host memory
        name="l40s",
        memory_bytes=46_068 * _MIB,
        flops=362e12,
        bandwidth_bytes_per_s=864e9,
        host_link=LinkSpec(25e9, 10e-6),
        idle_w=35.0,
        power_w=350.0,
    ),
)
DEVICES = {device.name: device for device in _ALL}


def find_device(name: str) -> DeviceSpec:
    """The device of that name. Raises ProfileError, naming those that are known."""
    if name not in DEVICES:
        raise ProfileError(unknown("device", name, DEVICES))
    return DEVICES[name]
