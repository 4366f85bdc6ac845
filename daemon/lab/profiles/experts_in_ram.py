"""A profile of a mixture with some of its experts in host memory, derived from a measured one.

A step of few tokens reads weights: those that all tokens share, and of each layer as many experts
as its tokens likely choose. So the experts' part of a step on the device follows from bytes. Those
in host memory are read at its rate, or computed at the CPU's where that takes longer. That the most
used ones stay on the device is left out: each choice is as likely as any other.
"""

from msgspec.structs import replace

from daemon.cost.curve import Curve
from daemon.cost.experts_below import experts_s
from daemon.cost.profile import DeviceSpec, ModelSpec, Operators, Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import rounded
from daemon.memory.experts import ExpertShape


def with_experts_in_ram(profile: Profile, num_layers: int) -> Profile:
    """`profile` with as many experts as so many layers have in host memory, named `...-ramN`.
    Raises ProfileError where it does not tell what that takes.
    """
    step, model, experts = profile.step, profile.model, profile.model.experts
    device = profile.device
    if experts is None:
        raise ProfileError(f"{profile.name}: its model has no experts that host memory could hold")
    if num_layers > experts.num_layers:
        there = f"it has {experts.num_layers} layers with experts"
        raise ProfileError(f"{profile.name}: {there}, and not {num_layers}")
    if not isinstance(step, Operators):
        raise ProfileError(f"{profile.name}: only operators tell what its experts take")
    if not device.ram_bytes_per_s or not device.ram_flops:
        raise ProfileError(f"{profile.name}: it does not say how fast host memory's experts are")
    part = num_layers / experts.num_layers
    note = f"not measured: the experts of {num_layers} layers in host memory (roofline)"
    return replace(
        profile,
        name=f"{profile.name}-ram{num_layers}",
        model=replace(
            model,
            num_params=model.num_params - int(part * experts.num_params),
            packed_params=model.packed_params - int(part * experts.packed_params),
            packed_bytes=model.packed_bytes - int(part * experts.packed_bytes),
            experts=None,
        ),
        step=replace(step, tokens_s=_divided(step.tokens_s, model, experts, device, part)),
        operators=None,
        source=(note, *profile.source),
    )


def _divided(
    curve: Curve, model: ModelSpec, experts: ExpertShape, device: DeviceSpec, part: float
) -> Curve:
    """The curve of what depends on a step's tokens, with a part of the experts in host memory."""
    all_bytes = experts.size_bytes(model.dtype)
    shared_bytes = model.weight_bytes(model.dtype) - all_bytes
    token_flops = 2.0 * experts.num_params * experts.chosen / experts.count

    def taken_s(count: float) -> float:
        read_bytes = experts.read_share(count) * all_bytes
        whole_s = curve(count)
        alone_s = whole_s * read_bytes / (shared_bytes + read_bytes)
        below_s = part * max(
            read_bytes / device.ram_bytes_per_s, count * token_flops / device.ram_flops
        )
        both_s = experts_s((1.0 - part) * alone_s, below_s, experts.num_layers)
        return rounded(whole_s - alone_s + both_s)

    last = curve.at[-1]
    at = sorted({*curve.at, *(float(1 << bit) for bit in range(20) if 1 << bit < last)})
    return Curve(tuple(at), tuple(taken_s(count) if curve(count) else 0.0 for count in at))
