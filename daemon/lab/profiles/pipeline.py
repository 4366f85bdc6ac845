"""A profile of one stage of a pipeline, derived from that of the whole model."""

from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Operators, PhaseFit, Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.memory.sizing import DTYPE_BYTES

_LAST_TOKENS = 8192.0


def staged(profile: Profile, pp: int) -> Profile:
    """`profile` cut into `pp` stages, named `...-ppN`; `model` stays the whole model.

    What layers cost is scaled by the share of the stage that has the most layers. Of operators, the
    output head and the host's overhead stay whole: the last stage is the one that paces the rest. A
    fit by phases does not know its head, so that all of it is scaled. Stages hand over
    hidden_size activations a token by the peer link.
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
        step=_share_of(profile.step, share),
        stage_s=Curve((0.0, _LAST_TOKENS), (link.latency_s, full_s)),
        source=(*profile.source, note),
    )


def _share_of(step: PhaseFit | Operators, share: float) -> PhaseFit | Operators:
    if isinstance(step, PhaseFit):
        return replace(
            step,
            prefill_s=_terms(step.prefill_s, share),
            decode_s=_terms(step.decode_s, share),
            large_decode_s=_terms(step.large_decode_s, share),
        )
    return replace(
        step,
        tokens_s=scaled_curve(step.tokens_s, share),
        prefill_s=scaled_surface(step.prefill_s, share),
        decode_s=scaled_surface(step.decode_s, share),
        communication_s=scaled_curve(step.communication_s, share),
    )


def _terms(terms: tuple[float, float, float], share: float) -> tuple[float, float, float]:
    return terms[0] * share, terms[1] * share, terms[2] * share


def scaled_curve(curve: Curve, factor: float) -> Curve:
    """The curve with all its values times `factor`."""
    return replace(curve, value=tuple(value * factor for value in curve.value))


def scaled_surface(surface: Surface, factor: float) -> Surface:
    """The surface with all its values times `factor`."""
    rows = tuple(tuple(value * factor for value in row) for row in surface.value)
    return replace(surface, value=rows)
