"""What `gpu_bench` is made of: each part's name, its time, and the figures that it gives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.job import Job


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run: what it needs beside torch and Triton, and how long it may take."""

    figures: Callable[[Job], Iterator[Figure]]
    budget_s: float
    needs: tuple[str, ...] = ("msgspec", "transformers")


def _decode(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.decode_speed import decode_figures

    return decode_figures(job)


def _prefill(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.prefill_speed import prefill_figures

    return prefill_figures(job)


def _swap(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.swap_speed import swap_figures

    return swap_figures(job)


def _swap_beside(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.swap_beside import swap_beside_figures

    return swap_beside_figures(job)


def _handoff(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.handoff_speed import handoff_figures

    return handoff_figures(job.device, job.tiny)


def _handoff_beside(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.handoff_beside import handoff_beside_figures

    return handoff_beside_figures(job)


def _http(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.http_speed import http_figures

    return http_figures(job)


def _peer(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.peer_speed import peer_figures

    return peer_figures(job)


def _sampler(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.sampler_speed import sampler_figures

    return sampler_figures(job)


def _ops(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.op_speed import op_figures

    return op_figures(job)


def _products(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.product_speed import product_figures

    return product_figures(job.device, job.tiny, job.limits)


def _blocks(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.block_speed import block_figures

    return block_figures(job.device, job.tiny, job.limits)


def _kernels(job: Job) -> Iterator[Figure]:
    from benchmarks.gpu.speed.kernel_speed import kernel_figures

    return kernel_figures(job)


SERVING = ("msgspec", "transformers", "aiohttp", "uvloop", "jinja2", "prometheus_client")
"""What `llmd serve` imports and a bare machine may lack."""

PARTS = {
    "decode": Part(_decode, 180.0),
    "prefill": Part(_prefill, 60.0),
    "swap": Part(_swap, 40.0),
    "handoff": Part(_handoff, 60.0),
    "http": Part(_http, 220.0, SERVING),
    "swap_beside": Part(_swap_beside, 45.0),
    "handoff_beside": Part(_handoff_beside, 60.0),
    "peer": Part(_peer, 90.0),
    "sampler": Part(_sampler, 30.0, ("msgspec",)),
    "products": Part(_products, 40.0),
    "blocks": Part(_blocks, 60.0),
    "ops": Part(_ops, 30.0, ("msgspec",)),
    "kernels": Part(_kernels, 45.0, ()),
}
"""In order: what the goals need first; the limits come before all. The first engine compiles all
kernels.
"""
