"""Attention through a paged cache against torch's; whatever may not be read is NaN."""

import torch

from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.verify.kernels.bench import LAYER, Bench
from daemon.engine.verify.kernels.compare import alike, equal, untouched

_SPARE = 3
"""Queries of no row."""


def try_decode(bench: Bench) -> None:
    """Rows of many lengths, one without tokens; as wide as tables get, and as narrow; variants.

    Twice, since what races does not repeat itself, and counters must be left at 0.
    """
    subject = bench.subject
    if subject.latent:
        _try_rows(bench)
        return
    size, scale = subject.block_size, float(subject.head_dim**-0.5)
    longest = min(subject.longest, subject.max_blocks * size)
    lengths = [min(length, longest) for length in (1, size, size + 1, 3 * size + 5, 0, longest)]
    cache, tables = bench.filled(lengths)
    query = _queries(bench, len(lengths))
    used = -(-longest // size)
    tried = [(width, FULL) for width in sorted({used, subject.max_blocks})]
    for width, variant in [*tried, (used, _variant(bench))]:
        rows = tables[:, :width].contiguous(), bench.column(lengths)
        where = query, cache.blocks, LAYER, *rows, scale
        out = torch.full_like(query, torch.nan)
        found = kernels.paged_decode_attention(*where, out, cache.scales, variant=variant)
        again = kernels.paged_decode_attention(*where, None, cache.scales, variant=variant)
        expected = reference.paged_decode_attention(*where, cache.scales, variant)
        what = f"attention of rows of {', '.join(map(str, lengths))} tokens{_named(variant)}"
        alike(what, found, expected, bench.limit)
        equal(f"{what}, the second time", again, found)


def try_prefill(bench: Bench) -> None:
    """Short chunks, long ones, and rows without tokens; each has a kernel of its own. Chunks of
    latent rows are torch's.
    """
    if bench.subject.latent:
        return
    size = bench.subject.block_size
    room = bench.subject.max_blocks * size
    long = min(max(70, bench.subject.longest // 4), room - 9)
    for starts, counts, variant in (
        ([0, size - 1, 2], [4, 3, 0], FULL),
        ([0, 9], [min(70, room), 1], FULL),
        ([9], [long], FULL),
        ([0, size - 1], [min(70, room), 3], _variant(bench)),
    ):
        _try_chunks(bench, starts, counts, variant)


def _try_rows(bench: Bench) -> None:
    """The same for latent rows."""
    subject = bench.subject
    if subject.kv_dtype:
        return  # torch reads rows of 8 bits
    size, scale, rank = subject.block_size, float(subject.head_dim**-0.5), subject.latent
    longest = min(subject.longest, subject.max_blocks * size)
    lengths = [min(length, longest) for length in (1, size, size + 1, 3 * size + 5, 0, longest)]
    cache, tables = bench.filled(lengths)
    query = bench.normal(len(lengths), subject.num_heads, subject.head_dim)
    rows = tables, bench.column(lengths), scale
    where = query[..., :rank], query[..., rank:], cache.blocks, LAYER, *rows
    found, again = kernels.paged_row_attention(*where), kernels.paged_row_attention(*where)
    expected = reference.paged_row_attention(*where)
    what = f"attention to latent rows of {', '.join(map(str, lengths))} tokens"
    alike(what, found, expected, bench.limit)
    equal(f"{what}, the second time", again, found)


def _try_chunks(
    bench: Bench, starts: list[int], counts: list[int], variant: AttentionVariant
) -> None:
    scale = float(bench.subject.head_dim**-0.5)
    cache, tables = bench.filled([s + c for s, c in zip(starts, counts, strict=True)])
    tokens = sum(counts)
    query = _queries(bench, tokens + _SPARE)
    offsets = [sum(counts[:row]) for row in range(len(counts))]
    rows = tables, bench.column(starts), bench.column(counts), bench.column(offsets)
    where = query, cache.blocks, LAYER, *rows, scale
    out = torch.full_like(query, torch.nan)
    found = kernels.paged_prefill_attention(*where, out, cache.scales, variant=variant)
    expected = reference.paged_prefill_attention(*where, cache.scales, variant)
    what = f"attention of chunks of {', '.join(map(str, counts))} tokens{_named(variant)}"
    alike(what, found[:tokens], expected[:tokens], bench.limit)
    untouched(what, found[tokens:])


def _variant(bench: Bench) -> AttentionVariant:
    """A window, a cap and sinks at once."""
    sinks = bench.normal(bench.subject.num_heads)
    return AttentionVariant(bench.subject.block_size + 3, 5.0, sinks)


def _named(variant: AttentionVariant) -> str:
    return f" through a window of {variant.window}, capped and with sinks" if variant.window else ""


def _queries(bench: Bench, tokens: int) -> torch.Tensor:
    """As a slice of a merged projection: rows lie apart."""
    subject = bench.subject
    return bench.normal(tokens, subject.num_heads + 2, subject.head_dim)[:, : subject.num_heads]
