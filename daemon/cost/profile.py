"""The profile of one model on one kind of device: step times, memory, links, power, price.

A profile is a JSON file. Profiles that come with llmd lie in `daemon/lab/profiles/`, `llmd profile`
measures the machine it runs on, and converters make them from published tables.
"""

import msgspec

from daemon.cost.curve import Curve, Surface
from daemon.memory.experts import ExpertShape
from daemon.memory.layout import KVHeads
from daemon.memory.sizing import DTYPE_BYTES
from daemon.memory.state_layout import StatePart


class ModelSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The model's shape. `daemon.memory.sizing.Shape` is a part of it."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_len: int  # tokens
    num_params: int
    dtype: str  # of weights that are not packed, and of the KV cache
    packed_params: int = 0  # in blocks, which they stay in
    packed_bytes: int = 0  # of these blocks
    kv_dtype: str = "auto"  # of the KV cache: auto (as `dtype`) | int8 | fp8
    windows: tuple[int, ...] = ()  # tokens that each layer sees; 0: all. Empty: all layers see all
    layer_heads: tuple[KVHeads, ...] = ()  # of each layer; empty: all have the same
    layer_states: tuple[tuple[StatePart, ...], ...] = ()  # of each; empty: none is recurrent
    experts: ExpertShape | None = None  # None: none that host memory could hold

    @property
    def beside(self) -> tuple["ModelSpec", ...]:
        """None: a profile is of a whole model."""
        return ()

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights, those that are not packed held as `dtype`."""
        return self.packed_bytes + (self.num_params - self.packed_params) * DTYPE_BYTES[dtype]


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link that copies take."""

    bytes_per_s: float
    latency_s: float = 0.0


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device of the kind measured. Zero where nothing is known."""

    name: str
    memory_bytes: int
    flops: float = 0.0  # dense peak in the model's dtype: MFU's denominator
    bandwidth_bytes_per_s: float = 0.0
    host_link: LinkSpec = LinkSpec(0.0)  # to host memory, one direction
    peer_link: LinkSpec = LinkSpec(0.0)  # straight to a sibling device, one direction; 0: none,
    # so transfers pass the host links of both
    idle_w: float = 0.0
    power_w: float = 0.0  # its limit as shipped
    ram_bytes_per_s: float = 0.0  # of host memory, whose experts the CPU reads and computes
    ram_flops: float = 0.0  # of the CPU, with them

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, such as cpu-2: all others are GPUs."""
        return self.name.startswith("cpu")


class PowerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Power drawn and time lost, as shares; measured where the source says so.

    Draw is a share of the device's limit. `prefill_slowdown` and `decode_slowdown` give the factor
    on a step's time at a cap, as a share of the limit; both are 1 at 1.
    """

    prefill_share: Curve  # by prompt tokens in the step
    decode_share: Curve  # by decodes in the step
    prefill_slowdown: Curve = Curve((1.0,), (1.0,))  # by cap
    decode_slowdown: Curve = Curve((1.0,), (1.0,))  # by cap


class PhaseFit(msgspec.Struct, frozen=True, kw_only=True, tag="phases", forbid_unknown_fields=True):
    """DistServe's fit: prefill a + b*sum(L) + c*sum(L^2); decode a + b*sum(context) + c*batch.

    A mixed step costs the decode fit and the prefill terms without their intercept. A chunk of n
    tokens after s others counts (s+n)^2 - s^2 among the squares.
    """

    prefill_s: tuple[float, float, float]
    decode_s: tuple[float, float, float]
    large_decode_s: tuple[float, float, float]  # from `large_batch` decodes on
    large_batch: int


class Operators(
    msgspec.Struct, frozen=True, kw_only=True, tag="operators", forbid_unknown_fields=True
):
    """Vidur's triage (section 4.3): what depends on tokens, on sequences, on messages.

    A step is overhead_s + row_s * rows + tokens_s(T) + sampled_s(samples) + communication_s(T)
    + sum over chunks of prefill_s(n, before) + decode_s(decodes, mean context).
    """

    tokens_s: Curve  # every operator that sees tokens alone, all layers; tile effects included
    prefill_s: Surface  # attention of one chunk: (its tokens, tokens before it)
    decode_s: Surface  # attention of all decodes: (decodes, mean context)
    sampled_s: Curve = Curve((0.0,), (0.0,))  # output head and sampling, by sampled rows
    communication_s: Curve = Curve((0.0,), (0.0,))  # all-reduces of tensor parallelism, by tokens
    overhead_s: float = 0.0  # of a step, whatever is in it
    row_s: float = 0.0  # of each sequence in a step


class OperatorCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator in all layers, by the one count that its time depends on."""

    name: str
    time_s: Curve


class OperatorsAlone(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Operators measured alone, in all layers (Vidur section 4.3); a step is their sum.

    Chunks count as Vidur has them: as a single one of the same pairs of tokens. `mape` is the error
    of the sums on whole steps that were measured and held out, as in `Fit`; 0: not known.
    """

    tokens_s: tuple[OperatorCurve, ...]  # token-level operators, by the tokens of a step
    sampled_s: tuple[OperatorCurve, ...]  # output head and sampler, by sampled rows
    prefill_s: Surface  # attention of chunks, KV written: (tokens, tokens before them)
    decode_s: Surface  # attention of decodes, KV written: (decodes, mean context)
    copied_s: Curve  # copies of blocks on the device, by blocks; no step's sum has them
    overhead_s: float  # by which whole steps take longer than the sums, in the median
    num_points: int
    mape: float = 0.0


class Fit(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How well the step model repeats what it was fitted to."""

    num_points: int
    mape: float  # mean absolute error over the truth, on points left out of the fit
    noise_sigma: float = 0.0  # standard deviation of log(measured / predicted): the run's own noise
    lacks: tuple[str, ...] = ()  # reasons to doubt it, as sentences: what was measured too little


class Edges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's time outside the steps, measured end to end. Zero: not modelled."""

    request_s: float = 0.0  # from the client's send to the Core's arrival
    delivery_s: float = 0.0  # from a step's answer to the client's token
    gap_s: float = 0.0  # from a plan to its step's start, at a worker that waits for it
    turn_s: float = 0.0  # from a step's end to the start of the next one, which was there already


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on `tp` * `pp` devices of one kind."""

    name: str  # such as opt-13b@a100-80g or llama-2-70b@a100-80g-tp2
    model: ModelSpec
    device: DeviceSpec
    step: PhaseFit | Operators  # of one pipeline stage's share where pp > 1
    fit: Fit
    tp: int = 1
    pp: int = 1
    stage_s: Curve = Curve((0.0,), (0.0,))  # handing a step's tokens to the next stage, by tokens
    power: PowerSpec | None = None
    edges: Edges = Edges()
    most_times: int = 1  # decode steps that its worker computes as one
    operators: OperatorsAlone | None = None  # beside `step`, where `llmd profile` could tell them
    source: tuple[str, ...] = ()  # origin of the numbers, and assumptions

    @property
    def num_devices(self) -> int:
        """Devices of one instance."""
        return self.tp * self.pp
