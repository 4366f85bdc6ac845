"""Messages between the runtime and an engine worker: one frozen, tagged struct each.

Runtime -> worker: `Ping`s while there is nothing to load, perhaps `LeaveSpare`, `Load` once, then
`Plan`s, among them `StartTransfer`, `CancelTransfer` and a profiler's `TimeOperators`, and
`Shutdown` at the end; over a socket of their own, each `NewLink` and `EndLink`, and each
`StartTransfer` that waits for no plan.
Worker -> runtime: `Loading` (progress), an `Alive` a `Ping`, `Ready` once, then one `Reply` a plan,
`Copied` as swap copies end, `LinkState` and `TransferOver` of links to other workers,
`OperatorTimes` where asked for, `Fallback` where torch stands in for kernels, `Compiling` where a
step takes long because of that, `ExpertsUsed` where some experts lie in host memory, `StagesWorked`
of pipeline stages, or `Failed`.
Of a worker that Ray placed also `OnNode`, and `Exited` at the end.
Every rank of an instance gets every plan; rank 0 alone replies. All of them say `Loading`, `Ready`,
`Copied` and `Failed`.
"""

import struct

import msgspec

from daemon.models.kv_parts import KVPart
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import Column, int32
from daemon.wire.pulse import Alive, Ping


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load a model and answer `Ready` once a first token is possible."""

    model: str  # a folder: safetensors, or the index of a GGUF file and a link to it
    device: str  # "cpu", "cuda:0", ...
    dtype: str  # of states: "float32", "bfloat16", "float16"
    block_size: int  # tokens
    num_blocks: int  # of the KV pool; 0: the worker sizes it from free device memory
    max_slots: int  # rows of the slot table
    max_len: int  # tokens of the longest sequence
    max_batch_tokens: int  # most tokens of a step, for warm-up and workspaces
    num_threads: int = 0  # CPU compute threads; 0: one for each CPU
    rank: int = 0
    world_size: int = 1
    num_host_blocks: int = 0  # of the host pool that blocks are swapped to
    compress: bool = False  # blocks in the host pool are int8, channel-wise (ALISE eq. 8)
    life: int = 0  # how many workers of this instance came before
    kv_dtype: str = ""  # of the KV pool: "int8" or "fp8"; empty: `dtype`
    cache: str = ""  # the folder of earlier starts' findings; empty: the user's own
    cpus: tuple[int, ...] = ()  # that all threads of the worker stay on; empty: any
    kernels: str = "auto"  # on a GPU: "torch" uses only torch's own
    finds_size: bool = False  # measure the target forward size
    weight_dtype: str = ""  # of weights that are not quantised; empty: `dtype`
    exact: bool = True  # matrix products round no states
    stage_layers: tuple[int, ...] = ()  # of each pipeline stage; empty: ranks share layers
    experts_on_cpu: int = 0  # layers of whose experts as many stay in host memory


class Join(msgspec.Struct, frozen=True, array_like=True):
    """A sequence takes a slot of the worker's table."""

    slot: int
    sequence: int
    num_prompt_tokens: int
    sampling: SamplingParams
    history: Column  # int32 [h]: every known token if sampling.needs_history, else empty


class Plan(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch with what the Core does not hold: token ids and sampling parameters."""

    batch: Batch
    inputs: Column  # int32 [sum of counts over fed rows]: their token ids, in row order
    joins: tuple[Join, ...]  # as batch.joined_slots
    drafts: Column = msgspec.field(default_factory=int32)  # int32 [sum of batch.drafts], in order


class StartTransfer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy blocks to another worker's KV pool, behind all plans before; see `actions.Send`.

    One that goes at once waits for no plan, and comes over the socket that is for links.
    """

    transfer: int
    peer: int  # the instance whose worker takes them
    blocks: Column  # int32 [n] of this worker's KV pool, or of its host pool
    targets: Column  # int32 [n] of the other's KV pool
    num_tokens: int  # that they hold: all but the last of each group of layers are full
    from_host: bool = False
    layered: bool = False  # the next plan computes the rest of them
    link: int = 0  # over this link alone: behind a newer one is another pool
    at_once: bool = False  # steps that have answered computed all of them
    num_groups: int = 1  # the last so many blocks have as many tokens each


class TimeOperators(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Time each operator of a plan's step alone, and answer `OperatorTimes`; for `llmd profile`.

    The plan's tables are applied and its blocks copied; no sequence gets a token.
    """

    plan: Plan
    repeats: int  # of each operator: the fastest counts


class CancelTransfer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Send nothing more of a transfer; both ends still answer with `TransferOver`."""

    transfer: int


class NodeDoor(msgspec.Struct, frozen=True, array_like=True):
    """The place where the host of a worker on a node lets in who has the token."""

    address: str
    port: int
    certificate: bytes  # DER; empty: on loopback, where nothing is encrypted
    token: bytes


class NewLink(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A link to another instance's worker: with this message, over the socket for links, comes a
    descriptor, its end of a socketpair. An older link to it is closed first.

    To a worker on a node it comes with its plans, without a descriptor; its host makes the pair,
    and a relay to the peer's.
    """

    peer: int
    sends: bool  # whether blocks leave here
    link: int  # its number: the same at both ends, and never used again
    peer_rank: int = 0  # of the peer's ranks
    part: KVPart | None = None  # of each block here, that goes over it; None: whole blocks do
    door: NodeDoor | None = None  # of the peer's host, for the host of a worker that sends


class EndLink(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A link to be closed, to any rank of the peer, over the socket for links: of those with this
    number one is lost, and a transfer needs all of them.
    """

    peer: int
    sends: bool
    link: int


class RankMemory(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Memory that all ranks of an instance share: with this message, the first over the socket for
    links, comes its descriptor. Only where an instance has several.
    """


class Shutdown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Finish and exit 0."""


class LeaveSpare(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Leave a fork of itself, before it loads, that has its imports and is a spare worker.

    The fork's two sockets lie ready on the socket for links, as one message with two descriptors.
    It sends its process id there, as `SPARE_PID`; its end means that there is none.
    """


SPARE_PID = struct.Struct("i")

WEIGHTS_END = 0.7
"""The share of a whole start at which all weights are loaded."""


class Loading(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Progress while loading, for STATUS= and llmd-top."""

    stage: str  # "imports" or "spare", "weights", "kv cache", "trial", "warm-up", ...
    fraction: float  # of the whole start, 0..1


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A first token is possible."""

    num_blocks: int
    block_bytes: int
    weight_bytes: int
    step_s: float  # time of one warm decode step of one sequence
    num_host_blocks: int = 0
    host_block_bytes: int = 0
    copy_block_s: float = 0.0  # time to copy one block to the host pool or back, measured
    token_s: float = 0.0  # time that one more prompt token adds to a step, measured
    forward_tokens: int = 0  # the target forward size, if it was measured
    row_s: float = 0.0  # time that one more decoded token adds to a step, measured; 0: not
    same_until: tuple[int, ...] = ()  # tokens of a step beyond which results round differently
    most_times: int = 1  # most decode steps in one multi-step program
    windows: tuple[int, ...] = ()  # of groups of layers, in tokens; empty: all layers see all
    kinds: tuple[str, ...] = ()  # of the same groups
    state_pages: int = 0  # of a sequence's states


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of the sampled tokens whose sequences want them."""

    rows: Column  # int32 [P]: index among the sampled tokens
    chosen: Column  # float32 [P]: of the sampled token
    top_ids: Column  # int32 [P * k], row-major; k = the most that any row wants
    top_values: Column  # float32 [P * k]


class PromptLogprobs(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Log-probabilities of some of a prompt's own tokens, each given the tokens before it."""

    sequence: int
    start: int  # index in the prompt of the first of them; the very first token has none
    chosen: Column  # float32 [S]: of the prompt's tokens
    top_ids: Column  # int32 [S * k], row-major; k as the sequence asked for
    top_values: Column  # float32 [S * k]


RowErrors = tuple[tuple[int, str], ...]
"""Rows that cannot go on: the index of their first token, and the reason as a sentence."""


class Reply(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The result of one plan: R sampled rows, in the plan's row order, and T sampled tokens."""

    step: int
    tokens: Column  # int32 [T], row by row; T is R unless `counts` has each row's number
    reasons: Column  # uint8 [R]: FinishReason; STOP at an end token, ERROR as in `errors`
    elapsed_s: float  # time of the step in the worker
    idle_s: float  # time the worker waited for this plan and its swap copies
    logprobs: Logprobs | None = None
    errors: RowErrors = ()  # these sequences end here; their tokens mean nothing
    prompts: tuple[PromptLogprobs, ...] = ()  # of the prompts that want them
    counts: Column = msgspec.field(default_factory=int32)  # as in `StepDone`; empty: one a row


class Copied(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Every swap copy of the plans up to and including `step` is done.

    The counts and times are of the copies since the last such message; a time is how long the bus
    was busy in that direction.
    """

    step: int
    num_out: int  # blocks
    out_s: float
    num_in: int
    in_s: float


class LinkState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One end of a link to another worker opened, or is closed and touches nothing any more."""

    peer: int
    sends: bool
    is_up: bool
    link: int
    direct: bool = False  # blocks are written directly into the other's pool
    why: str = ""  # why it is closed
    peer_rank: int = 0  # whose rank the other end is


CANCELLED = "it was cancelled"
"""The reason of a transfer that the Core itself cancelled, since it is no longer needed."""


class TransferOver(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A transfer is over at this end, as in `events.TransferEnded`."""

    transfer: int
    num_right: int
    elapsed_s: float
    why: str = ""  # why not all of it is right
    peer_rank: int = 0  # the rank of the other instance that this part went to, or came from


class OperatorTimes(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Times of the operators of a step, each alone and in all layers."""

    step: int
    times_s: tuple[tuple[str, float], ...]  # by name; empty where the model is one whole


class Fallback(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From now on torch computes instead of a family of GPU kernels; sent before `Ready`, or later
    where a fault shows only then.
    """

    family: str  # a key of `daemon.engine.families.FAMILIES`
    why: str


class ExpertsUsed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The places of a mixture's experts, and how many of the tokens' were computed in each; sent
    at most once a second by a worker that keeps some in host memory.
    """

    on_device: int  # experts of all layers
    in_ram: int
    bytes_in_ram: int
    chosen_on_device: int  # pairs of a token and an expert since the worker began
    chosen_in_ram: int
    exchanged: int


class StagesWorked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The time of an instance's steps since its worker began, and the part of it in which each of
    its pipeline stages computed; sent at most once a second. In the rest, its bubbles, a stage
    waited for another.
    """

    steps_s: float  # in which a step was in flight
    computed_s: tuple[float, ...]  # of each stage


class Compiling(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A compiler is at work while serving; sent once a second while it is."""

    compiler: str  # "triton" or "numba"


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker cannot go on; it exits after this."""

    message: str


class OnNode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ray has placed the worker; its proxy says so before all that the worker says."""

    node: str
    door: NodeDoor  # for links


class Exited(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker that Ray placed has ended, the last message of all. Without it its node is lost,
    or its proxy.
    """

    status: int  # its exit status; negative: the signal that ended it


ToWorker = (
    Ping | LeaveSpare | Load | Plan | TimeOperators | StartTransfer | CancelTransfer | Shutdown
)
FromWorker = (
    Loading
    | Alive
    | Ready
    | Reply
    | Copied
    | LinkState
    | TransferOver
    | OperatorTimes
    | Fallback
    | Compiling
    | ExpertsUsed
    | StagesWorked
    | Failed
    | OnNode
    | Exited
)
