"""The subject of a self-test: shapes and types of a model in a pool on a device."""

import msgspec


class RecurrentSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recurrent layer: its convolution, and what carries a state on behind it."""

    num_channels: int
    taps: int
    rule: str = ""  # one of those below; empty: the convolution is all
    num_heads: int = 0  # or channels, each with a row of its own
    num_shared: int = 0  # heads of keys, or groups
    sizes: tuple[int, int] = (0, 0)  # of a head's matrix


HEADS_DECAY, CHANNELS_DECAY = "delta", "channel delta"
"""Delta rules: of gated delta nets, and of Kimi's delta attention."""
SCANS_HEADS, SCANS_CHANNELS = "mamba 2", "mamba 1"


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Enough to try every family; a child process gets it as JSON."""

    device: str  # "cuda:0", ...; "cpu" where Triton interprets
    dtype: str  # of states
    kv_dtype: str  # of an 8-bit pool: "int8" or "fp8"; empty: `dtype`
    block_size: int  # tokens
    max_blocks: int  # of a sequence
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    head_norms: bool  # whether queries and keys are normed
    hidden: int
    gated: int  # width between a gated MLP's products
    vocab: int
    products: tuple[tuple[int, int, bool], ...]  # out_features, in_features, whether there is bias
    quantised: tuple[tuple[str, int, int], ...] = ()  # weights: format, rows, columns
    experts: tuple[tuple[str, int, int], ...] = ()  # weights of experts, as `quantised`
    compress: bool = False  # blocks are packed for the host pool
    most_rows: int = 1  # sequences of a step
    latent: int = 0  # of a row that is key and value in one: see `PagedKV`
    recurrent: tuple[RecurrentSizes, ...] = ()  # layers that keep states
    longest: int = 1500  # tokens of the longest context that is tried
