"""Writes the calls of the kernels of a mixture; their tensors must outlive the run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from daemon.engine.cpu import expert_kernels, rounded_kernels
from daemon.engine.cpu.expert_kernels import GROUP, GROUPS_HEAD
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.quantised_kernels import COLUMNS_AT_ONCE
from daemon.engine.cpu.team import Call
from daemon.engine.layers.routers import Router
from daemon.engine.quantised.weight import QuantisedWeight


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Which rows T tokens have with k of E experts each: an expert's rows begin at a multiple."""

    num_experts: int
    multiple: int
    num_rows: int  # at most
    chosen: torch.Tensor  # int32 [T, k]
    shares: torch.Tensor  # float32 [T, k]
    groups: torch.Tensor  # int64; see `expert_kernels`
    tokens: torch.Tensor  # int32 [num_rows]: of rows
    rows: torch.Tensor  # int32 [T, k]: of tokens
    counts: torch.Tensor  # int32 [E]

    @classmethod
    def of(cls, num_tokens: int, num_chosen: int, num_experts: int, multiple: int) -> "ExpertRows":
        """Room for `num_tokens` tokens."""
        num_rows = cls.most(num_tokens, num_chosen, num_experts, multiple)
        most_groups = min(num_tokens * num_chosen, num_experts)
        pair = num_tokens, num_chosen
        return cls(
            num_experts,
            multiple,
            num_rows,
            torch.zeros(pair, dtype=torch.int32),
            torch.zeros(pair),
            torch.zeros(GROUPS_HEAD + GROUP * most_groups, dtype=torch.int64),
            torch.zeros(num_rows, dtype=torch.int32),
            torch.zeros(pair, dtype=torch.int32),
            torch.zeros(num_experts, dtype=torch.int32),
        )

    @staticmethod
    def most(num_tokens: int, num_chosen: int, num_experts: int, multiple: int) -> int:
        """Most rows that there may be."""
        pairs = num_tokens * num_chosen
        return pairs + min(pairs, num_experts) * (multiple - 1)

    @property
    def most_groups(self) -> int:
        """Experts that may have rows."""
        return (len(self.groups) - GROUPS_HEAD) // GROUP

    @property
    def count_address(self) -> int:
        """The address of the number of rows."""
        return self.groups.data_ptr() + 8


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """A product of every expert."""

    kernel: int  # its address
    weights: torch.Tensor  # int64 [E]: addresses
    like: QuantisedWeight  # one of them
    lanes: int  # tokens of a record

    @property
    def items(self) -> int:
        """Items of the product of a single expert."""
        return -(-self.like.rows // COLUMNS_AT_ONCE)


def routed(logits: torch.Tensor, rows: ExpertRows, router: Router, scale: torch.Tensor) -> Call:
    """Chooses the experts of each token by `logits` [T, E], which change; `scale` float32 [2]: the
    router's, and what it adds to the divisor of shares.
    """
    count, num_experts = logits.shape
    sizes = num_experts, rows.chosen.shape[1], int(router.to_one)
    places = rows.chosen.data_ptr(), rows.shares.data_ptr()
    begun = logits.data_ptr(), *sizes, *places
    correction = router.correction
    grouped = router.kept_groups < router.groups
    scaled = router.scale != 1.0 or router.added != 0.0
    if not (router.sigmoid or grouped or correction is not None or scaled):
        return count, BY_ADDRESS, expert_kernels.routed().address, *begun
    address = expert_kernels.routed_by_scores().address
    added = 0 if correction is None else correction.data_ptr()
    rest = int(router.sigmoid), added, router.groups, router.kept_groups, scale.data_ptr()
    return count, BY_ADDRESS, address, *begun, *rest


def arranged(rows: ExpertRows) -> Call:
    """Gives each token its rows."""
    address = expert_kernels.arranged().address
    count, num_chosen = rows.chosen.shape
    sizes = count * num_chosen, num_chosen, rows.num_experts, rows.multiple
    tables = rows.groups, rows.tokens, rows.rows, rows.counts
    places = (table.data_ptr() for table in tables)
    return 1, BY_ADDRESS, address, rows.chosen.data_ptr(), *sizes, *places


def rounded(
    states: torch.Tensor, records: torch.Tensor, lanes: int, rows: ExpertRows, gather: bool
) -> Call:
    """Rounds the rows of `states` into `records`; with `gather` those that rows' tokens have."""
    address = rounded_kernels.rounded().address
    places = states.data_ptr(), states.shape[1], records.data_ptr(), lanes
    tokens = rows.tokens.data_ptr() if gather else 0
    return rows.num_rows, BY_ADDRESS, address, *places, tokens, rows.count_address


def grouped(
    product: GroupedProduct,
    states: torch.Tensor,
    state_bytes: int,
    rows: ExpertRows,
    output: torch.Tensor,
    first: int,
) -> Call:
    """Products of all experts, of states of `state_bytes` a row, to columns of `output`
    [rows, N] from `first` on.
    """
    return (
        rows.most_groups * product.items,
        BY_ADDRESS,
        expert_kernels.grouped().address,
        product.kernel,
        product.weights.data_ptr(),
        product.like.data.shape[1],
        product.like.rows,
        product.like.columns,
        states.data_ptr(),
        state_bytes,
        output.data_ptr() + 4 * first,
        output.stride(0),
        product.lanes,
        rows.groups.data_ptr(),
        product.items,
    )


def biased(states: torch.Tensor, biases: torch.Tensor, rows: ExpertRows) -> Call:
    """Adds to each row of `states` [rows, N] the bias of its expert, of `biases` [E, N]."""
    address = expert_kernels.biased().address
    places = states.data_ptr(), states.shape[1], biases.data_ptr(), rows.groups.data_ptr()
    return rows.most_groups, BY_ADDRESS, address, *places


def clamped(
    states: torch.Tensor, output: torch.Tensor, limits: torch.Tensor, in_turns: bool
) -> Call:
    """gpt-oss's gate: `output` [rows, N] of `states` [rows, 2 * N]; `limits`: limit and alpha."""
    address = expert_kernels.clamped().address
    places = states.data_ptr(), output.shape[1], output.data_ptr(), limits.data_ptr()
    return len(output), BY_ADDRESS, address, *places, int(in_turns)


def joined(
    made: torch.Tensor,
    rows: ExpertRows,
    output: torch.Tensor,
    beside: torch.Tensor | None = None,
    share: torch.Tensor | None = None,
) -> Call:
    """`output` [T, K] of what experts `made` [rows, K], and of what is `beside` [T, K] in the
    sigmoid of a `share` [T, 1].
    """
    address = expert_kernels.joined().address
    count, num_chosen = rows.chosen.shape
    tables = rows.rows.data_ptr(), rows.shares.data_ptr(), num_chosen
    added = (0 if tensor is None else tensor.data_ptr() for tensor in (beside, share))
    places = made.data_ptr(), made.shape[1], *tables, output.data_ptr()
    return count, BY_ADDRESS, address, *places, *added


def addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """int64 [n]: where some tensors lie."""
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64)
