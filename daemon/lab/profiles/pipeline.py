"""A profile of one stage of a pipeline, derived from the whole model's."""

from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Operators, PhaseFit, Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.memory.sizing import DTYPE_BYTES

_LAST_TOKENS = 8192.0


def staged(profile: Profile, pp: int) -> Profile:
    """`profile` cut into `pp` stages, named `...-ppN`; `model` stays the whole model.

    The layers' cost is scaled by the share of the stage with the most layers. With operators, the
    output head and the host's overhead stay whole: the last stage sets the pace. A fit by phases
    does not know its head, so all of it is scaled. Stages hand over hidden_size activations per
    token by the peer link.
    """
    if profile.pp != 1:
        raise ProfileError(f"{profile.name} is a pipeline of {profile.pp} stages already")
    layers = profile.model.num_layers
    if not 2 <= pp <= layers:
        raise ProfileError(f"{profile.name}: {layers} layers do not make {pp} stages")
    share = -(-layers // pp) / layers
    link = profile.device.peer_link
    if not link.bytes_per_s:
        raise ProfileError(f"{profile.name}: its device has no peer link for a pipeline's stages")
    token_bytes = profile.model.hidden_size * DTYPE_BYTES[profile.model.dtype]
    full_s = link.latency_s + _LAST_TOKENS * token_bytes / link.bytes_per_s
    note = f"cut into {pp} stages: each costs {share:.3g} of the layers"
    return replace(
        profile,
        name=f"{profile.name}-pp{pp}",
        pp=pp,
        step=scaled_step(profile.step, tokens=share, prefill=share, decode=share),
        stage_s=Curve((0.0, _LAST_TOKENS), (link.latency_s, full_s)),
        source=(*profile.source, note),
    )


def scaled_step(
    step: PhaseFit | Operators,
    tokens: float = 1.0,
    prefill: float = 1.0,
    decode: float = 1.0,
    sampled: float = 1.0,
    overhead: float = 1.0,
) -> PhaseFit | Operators:
    """The step costs, each term times its factor; a fit by phases has prefill and decode alone."""
    if isinstance(step, PhaseFit):
        return replace(
            step,
            prefill_s=_terms(step.prefill_s, prefill),
            decode_s=_terms(step.decode_s, decode),
            large_decode_s=_terms(step.large_decode_s, decode),
        )
    return replace(
        step,
        tokens_s=_curve(step.tokens_s, tokens),
        prefill_s=_surface(step.prefill_s, prefill),
        decode_s=_surface(step.decode_s, decode),
        sampled_s=_curve(step.sampled_s, sampled),
        communication_s=_curve(step.communication_s, tokens),
        overhead_s=step.overhead_s * overhead,
        row_s=step.row_s * overhead,
    )


def _terms(terms: tuple[float, float, float], factor: float) -> tuple[float, float, float]:
    return terms[0] * factor, terms[1] * factor, terms[2] * factor


def _curve(curve: Curve, factor: float) -> Curve:
    """The curve with all its values times `factor`."""
    return replace(curve, value=tuple(value * factor for value in curve.value))


def _surface(surface: Surface, factor: float) -> Surface:
    """The surface with all its values times `factor`."""
    rows = tuple(tuple(value * factor for value in row) for row in surface.value)
    return replace(surface, value=rows)
