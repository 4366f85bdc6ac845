"""Vidur's published tables in the form that its package of 2025 reads.

The tables have attention in two columns and of one tensor parallel degree; the package wants one
column, and rows of the degree asked for. Another degree's rows are made as `importers.vidur` reads
them: a rank has its share of the heads, so a decode of as many more sequences takes as long, and a
chunk its share of the time.
"""

import csv
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

_COLUMNS = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "block_size",
    "prefill_chunk_size",
    "kv_cache_size",
)
_DEGREE = "num_tensor_parallel_workers"
_MEDIAN = "time_stats.attn.median"


def write_tables(source: Path, published: str, device: str, tp: int, folder: Path) -> None:
    """Write `folder`/compute and `folder`/network for a model by its published name."""
    compute, network = folder / "compute", folder / "network"
    compute.mkdir(parents=True)
    network.mkdir()
    tables = source / "compute" / device / published
    _write(compute / "mlp.csv.xz", _rows(tables / "mlp.csv"))
    _write(compute / "attention.csv.xz", _attention(tables / "attention.csv", tp))
    (compute / "config.json").write_text(json.dumps({"model": published, "device_sku": device}))
    sku = f"{device}_dgx"
    for name in ("all_reduce", "send_recv"):
        _write(network / f"{name}.csv.xz", _rows(source / "network" / sku / f"{name}.csv"))
    (network / "config.json").write_text(json.dumps({"sku": sku}))


def _attention(path: Path, tp: int) -> Iterator[dict[str, str]]:
    """Rows of prefill and decode alike, for one of `tp` ranks."""
    for row in _rows(path):
        degree, batch_size = int(row[_DEGREE]), int(row["batch_size"])
        of_prefill = row["is_prefill"] == "True"
        median_ms = float(row[f"time_stats.attn_{'prefill' if of_prefill else 'decode'}.median"])
        if of_prefill:
            median_ms *= degree / tp
        elif batch_size * tp % degree:
            continue
        else:
            batch_size = batch_size * tp // degree
        kept = {name: row[name] for name in _COLUMNS}
        yield {**kept, _DEGREE: str(tp), "batch_size": str(batch_size), _MEDIAN: str(median_ms)}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    rows = iter(rows)
    first = next(rows)
    with lzma.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, list(first))
        writer.writeheader()
        writer.writerow(first)
        writer.writerows(rows)
