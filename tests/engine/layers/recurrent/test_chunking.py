"""Recurrent layers in any cut are what transformers' functions compute of whole sequences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.mamba.modeling_mamba import causal_conv1d_fn, mamba_selective_scan
from transformers.models.nemotron_h.modeling_nemotron_h import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from daemon.engine.layers.recurrent.chunk_scan import chunk_scan, time_steps
from daemon.engine.layers.recurrent.delta_rule import delta_rule
from daemon.engine.layers.recurrent.recurrence import convolve
from daemon.engine.layers.recurrent.rows import TokenRows
from daemon.engine.layers.recurrent.selective_scan import selective_scan
from tests.soak import tries

TOLERANCE = 1e-5

Columns = dict[str, torch.Tensor]
"""What a layer takes of each token, [T, ...]."""
Compute = Callable[[Columns, torch.Tensor, TokenRows], torch.Tensor]


class Kind:
    """A kind of layer: random columns, transformers' function, ours, and a state's shape."""

    def __init__(
        self,
        make: Callable[[int], Columns],
        whole: Callable[[Columns], torch.Tensor],
        ours: Compute,
        state: tuple[int, ...],
    ) -> None:
        self.make, self.whole, self.ours, self.state = make, whole, ours, state


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def delta_columns(count: int) -> Columns:
    names = {"query": (2, 8), "key": (2, 8), "value": (4, 6)}
    found = {name: randn(count, *shape) for name, shape in names.items()}
    return found | {"decay": -randn(count, 4).exp(), "beta": randn(count, 4).sigmoid()}


def kimi_columns(count: int) -> Columns:
    found = {name: randn(count, 3, 8) for name in ("query", "key", "value")}
    return found | {"decay": -randn(count, 3, 8).exp(), "beta": randn(count, 3).sigmoid()}


def batched(columns: Columns) -> list[torch.Tensor]:
    return [column.unsqueeze(0) for column in columns.values()]


def whole_delta(columns: Columns) -> torch.Tensor:
    made, _ = torch_chunk_gated_delta_rule(*batched(columns), use_qk_l2norm_in_kernel=True)
    return made[0]


def whole_kimi(columns: Columns) -> torch.Tensor:
    made, _ = chunk_kimi_delta_attention(*batched(columns), use_qk_l2norm_in_kernel=True)
    return made[0]


def our_delta(columns: Columns, states: torch.Tensor, rows: TokenRows) -> torch.Tensor:
    return delta_rule(**columns, states=states, rows=rows)


torch.manual_seed(3)
RATES, DIRECT, BIAS = -torch.rand(4).exp(), torch.randn(4), torch.randn(4)
LIMITS = (0.1, 2.0)


def scan_columns(count: int) -> Columns:
    return {
        "inputs": randn(count, 4, 6),
        "dt": randn(count, 4),
        "write": randn(count, 2, 5),
        "read": randn(count, 2, 5),
    }


def whole_scan(columns: Columns) -> torch.Tensor:
    inputs, dt, write, read = batched(columns)
    told = {"D": DIRECT, "dt_bias": BIAS, "dt_softplus": True, "dt_limit": LIMITS}
    return mamba2_chunk_scan(inputs, dt, RATES, write, read, 16, **told)[0]


def our_scan(columns: Columns, states: torch.Tensor, rows: TokenRows) -> torch.Tensor:
    inputs, dt, write, read = columns.values()
    steps = time_steps(dt, BIAS, True, LIMITS)
    return chunk_scan(inputs, steps, RATES, write, read, DIRECT, states, rows)


CHANNEL_RATES, CHANNEL_DIRECT = -torch.rand(12, 5).exp(), torch.randn(12)


def selective_columns(count: int) -> Columns:
    wide = {name: randn(count, 12) for name in ("inputs", "dt")}
    return wide | {name: randn(count, 5) for name in ("write", "read")}


def whole_selective(columns: Columns) -> torch.Tensor:
    inputs, dt, write, read = (column.T.unsqueeze(0) for column in columns.values())
    told = {"D": CHANNEL_DIRECT, "delta_softplus": True}
    return mamba_selective_scan(inputs, dt, CHANNEL_RATES, write, read, **told)[0].T


def our_selective(columns: Columns, states: torch.Tensor, rows: TokenRows) -> torch.Tensor:
    inputs, dt, write, read = columns.values()
    steps = time_steps(dt, None, True)
    parts = CHANNEL_RATES, write, read, CHANNEL_DIRECT
    return selective_scan(inputs, steps, *parts, states, rows)


WEIGHT, CONV_BIAS = torch.randn(7, 4), torch.randn(7)


def whole_convolution(columns: Columns) -> torch.Tensor:
    inputs = columns["inputs"].T.unsqueeze(0)
    return causal_conv1d_fn(inputs, WEIGHT, CONV_BIAS, activation="silu")[0].T


def our_convolution(columns: Columns, states: torch.Tensor, rows: TokenRows) -> torch.Tensor:
    return convolve(columns["inputs"], WEIGHT, CONV_BIAS, True, states, rows)


KINDS = {
    "gated delta": Kind(delta_columns, whole_delta, our_delta, (4, 8, 6)),
    "kimi's delta": Kind(kimi_columns, whole_kimi, our_delta, (3, 8, 8)),
    "mamba 2": Kind(scan_columns, whole_scan, our_scan, (4, 6, 5)),
    "mamba 1": Kind(selective_columns, whole_selective, our_selective, (12, 5)),
    "convolution": Kind(
        lambda count: {"inputs": randn(count, 7)}, whole_convolution, our_convolution, (3, 7)
    ),
}

CUTS = st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 16, 31, 64, 65, 80]), min_size=1, max_size=6)
SEQUENCES = st.lists(CUTS, min_size=1, max_size=4)


def steps_of(sequences: list[list[int]], order: int) -> list[list[tuple[int, int, int]]]:
    """Steps of (sequence, first token, tokens): some sequences begin later than others."""
    steps: list[list[tuple[int, int, int]]] = []
    for number, cuts in enumerate(sequences):
        first = 0
        for at, count in enumerate(cuts, number * order % 3):
            steps += [[] for _ in range(at + 1 - len(steps))]
            steps[at].insert(order % (len(steps[at]) + 1), (number, first, count))
            first += count
    return [step for step in steps if step]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=tries(12, 300))
@given(sequences=SEQUENCES, order=st.integers(0, 5), seed=st.integers(0, 10_000))
def test_any_cut_is_transformers_whole_pass(
    name: str, sequences: list[list[int]], order: int, seed: int
) -> None:
    kind = KINDS[name]
    torch.manual_seed(seed)
    columns = [kind.make(sum(cuts)) for cuts in sequences]
    expected = [kind.whole(each) for each in columns]
    found = [torch.full_like(each, torch.nan) for each in expected]
    states = torch.zeros(len(sequences), *kind.state)
    for step in steps_of(sequences, order):
        counts = np.array([count for _, _, count in step])
        rows = TokenRows(np.cumsum(counts) - counts, counts)
        parts = {
            column: torch.cat([columns[it][column][first : first + n] for it, first, n in step])
            for column in columns[0]
        }
        some = torch.tensor([number for number, _, _ in step])
        own = states[some]
        made = kind.ours(parts, own, rows)
        states[some] = own
        for (number, first, count), part in zip(step, made.split(counts.tolist()), strict=True):
            found[number][first : first + count] = part
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < TOLERANCE


FAR_APART = torch.cat([torch.full((40,), -20.0), torch.full((24,), -0.01)])
"""Logarithms of decays whose sums are large where those between the last tokens are small."""


def test_decays_of_late_tokens_are_not_rounded_as_sums_over_all_before_are() -> None:
    torch.manual_seed(5)
    rows = TokenRows(np.array([0]), np.array([64]))
    delta, scan = delta_columns(64), scan_columns(64)
    delta |= {"decay": FAR_APART[:, None].repeat(1, 4)}
    found = our_delta(delta, torch.zeros(1, 4, 8, 6), rows)
    expected = delta_in_turn(**delta)
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-6
    steps = -FAR_APART[:, None].repeat(1, 4)
    inputs, _, write, read = scan.values()
    parts = inputs, steps, torch.full((4,), -1.0), write, read
    found = chunk_scan(*parts, None, torch.zeros(1, 4, 6, 5), rows)
    expected = scan_in_turn(*parts)
    late = slice(42, None)  # what the long steps write is much larger
    assert float((found - expected)[late].abs().max() / expected[late].abs().max()) < 2e-6


def delta_in_turn(**columns: torch.Tensor) -> torch.Tensor:
    """The gated delta rule in float64, token by token; [T, H, dv]."""
    query, key, value, decay, beta = (column.double() for column in columns.values())
    query, key = (
        (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(2, 1)
        for each in (query, key)
    )
    state, found = torch.zeros(4, 8, 6, dtype=torch.float64), []
    for q, k, v, g, b in zip(query, key, value, decay, beta, strict=True):
        state = state * g.exp()[:, None, None]
        missing = (v - torch.einsum("hk,hkv->hv", k, state)) * b[:, None]
        state = state + torch.einsum("hk,hv->hkv", k, missing)
        found.append(torch.einsum("hk,hkv->hv", q, state) * 8**-0.5)
    return torch.stack(found)


def scan_in_turn(*columns: torch.Tensor) -> torch.Tensor:
    """Mamba 2's scan in float64, token by token; [T, H, P]."""
    inputs, steps, rates, write, read = (column.double() for column in columns)
    write, read = (each.repeat_interleave(2, 1) for each in (write, read))
    state, found = torch.zeros(4, 6, 5, dtype=torch.float64), []
    for x, dt, b, c in zip(inputs, steps, write, read, strict=True):
        taken = torch.einsum("h,hp,hn->hpn", dt, x, b)
        state = state * (dt * rates).exp()[:, None, None] + taken
        found.append(torch.einsum("hpn,hn->hp", state, c))
    return torch.stack(found)
