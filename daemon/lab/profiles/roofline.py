"""A profile for a device with less bandwidth per compute: its memory-bound parts are scaled.

Matrix products read all weights whatever the tokens: their time at one token is the memory's, and
scales with the bandwidth; where compute takes longer it stays (roofline). Attention of decodes
reads the cache and scales, except its time at the shortest context. Compute scales with the peaks,
and all-reduces, except the shortest, with the link between the devices.
"""

from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import DeviceSpec, Fit, Operators, Profile
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import rounded
from daemon.lab.profiles.importers.naming import profile_name


def scaled_to(profile: Profile, device_name: str) -> Profile:
    """`profile` scaled to `device_name`. Raises ProfileError for a fit by phases."""
    step, device = profile.step, find_device(device_name)
    factor = profile.device.bandwidth_bytes_per_s / device.bandwidth_bytes_per_s
    compute = profile.device.flops / device.flops
    if not isinstance(step, Operators) or factor < compute:
        raise ProfileError(
            f"{profile.name}: only operators scale, and only to devices of no more bandwidth for "
            "their compute"
        )
    alike = device.flops == profile.device.flops
    links = _between_bytes_per_s(profile.device) / _between_bytes_per_s(device)
    return replace(
        profile,
        name=profile_name(profile.model.name, device.name, profile.tp),
        device=device,
        step=replace(
            step,
            tokens_s=_bound_by_weights(step.tokens_s, factor, compute),
            sampled_s=_bound_by_weights(step.sampled_s, factor, compute),
            prefill_s=_computing(step.prefill_s, compute),
            decode_s=bound_by_cache(step.decode_s, factor),
            communication_s=_sent(step.communication_s, links),
        ),
        power=profile.power if alike else None,
        fit=Fit(num_points=0, mape=0.0, noise_sigma=profile.fit.noise_sigma),
        source=(
            f"not measured: {profile.name} scaled by roofline, bandwidth "
            f"{device.bandwidth_bytes_per_s / 1e12:.2f} for "
            f"{profile.device.bandwidth_bytes_per_s / 1e12:.2f} TB/s, "
            + ("compute alike" if alike else f"compute {1 / compute:.2f} times")
            + "; the error of that is not known",
            *(line for line in profile.source if not line.startswith("fit:")),
        ),
    )


def _between_bytes_per_s(device: DeviceSpec) -> float:
    """The rate between two devices of a kind, over host memory if they have no link."""
    return device.peer_link.bytes_per_s or device.host_link.bytes_per_s


def _bound_by_weights(curve: Curve, factor: float, compute: float) -> Curve:
    """The curve, nowhere below the time of reading the weights; no rows still take none."""
    reading_s = next((value for value in curve.value if value), 0.0) * factor
    values = tuple(
        rounded(max(value * compute, reading_s)) if value else 0.0 for value in curve.value
    )
    return replace(curve, value=values)


def _computing(surface: Surface, compute: float) -> Surface:
    rows = tuple(tuple(rounded(value * compute) for value in row) for row in surface.value)
    return surface if compute == 1.0 else replace(surface, value=rows)


def _sent(curve: Curve, factor: float) -> Curve:
    """The curve, its time above the first knot scaled: there messages wait and hardly send."""
    first_s = curve.value[0]
    values = tuple(rounded(first_s + (value - first_s) * factor) for value in curve.value)
    return curve if factor == 1.0 else replace(curve, value=values)


def bound_by_cache(surface: Surface, factor: float) -> Surface:
    """The surface, each row's time above its first column scaled."""
    rows = tuple(
        tuple(rounded(row[0] + (value - row[0]) * factor) for value in row) for row in surface.value
    )
    return replace(surface, value=rows)
