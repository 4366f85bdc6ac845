"""A profile for a device of the same compute and another bandwidth: what is bound by memory scales.

Matrix products read all weights whatever the tokens: their time at one token is the memory's, and
scales with the bandwidth; where compute takes longer it stays (roofline). Attention of decodes
reads the cache and scales, but for its time at the shortest context; attention of prompts
computes and stays, and so do all-reduces, since both devices have the same links.
"""

from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Fit, Operators, Profile
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import rounded
from daemon.lab.profiles.importers.naming import profile_name


def scaled_to(profile: Profile, device_name: str) -> Profile:
    """`profile` as it would be on `device_name`. Raises ProfileError for a fit by phases."""
    step, device = profile.step, find_device(device_name)
    if not isinstance(step, Operators) or device.flops != profile.device.flops:
        raise ProfileError(
            f"{profile.name}: only operators scale, and only between devices of equal compute"
        )
    factor = profile.device.bandwidth_bytes_per_s / device.bandwidth_bytes_per_s
    return replace(
        profile,
        name=profile_name(profile.model.name, device.name, profile.tp),
        device=device,
        step=replace(
            step,
            tokens_s=_bound_by_weights(step.tokens_s, factor),
            sampled_s=_bound_by_weights(step.sampled_s, factor),
            decode_s=_bound_by_cache(step.decode_s, factor),
        ),
        fit=Fit(num_points=0, mape=0.0, noise_sigma=profile.fit.noise_sigma),
        source=(
            f"not measured: {profile.name} scaled by roofline, bandwidth "
            f"{device.bandwidth_bytes_per_s / 1e12:.2f} for "
            f"{profile.device.bandwidth_bytes_per_s / 1e12:.2f} TB/s, compute alike; the error of "
            "that is not known",
            *(line for line in profile.source if not line.startswith("fit:")),
        ),
    )


def _bound_by_weights(curve: Curve, factor: float) -> Curve:
    """The curve, nowhere under the time of reading the weights; no rows still take none."""
    reading_s = next((value for value in curve.value if value), 0.0) * factor
    values = tuple(rounded(max(value, reading_s)) if value else 0.0 for value in curve.value)
    return replace(curve, value=values)


def _bound_by_cache(surface: Surface, factor: float) -> Surface:
    """Each row's time above that of its first column, scaled."""
    rows = tuple(
        tuple(rounded(row[0] + (value - row[0]) * factor) for value in row) for row in surface.value
    )
    return replace(surface, value=rows)
