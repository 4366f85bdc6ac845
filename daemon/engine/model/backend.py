"""The backends: attention, small operations and products for a device and dtype."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.families import (
    ALL,
    BLOCKS,
    CAPTURED,
    DECODE,
    GRAPHS,
    NONE,
    PREFILL,
    STATES,
    WRITE,
    ByTorch,
    Fallen,
    unheard,
)
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.forward import Forward, Programs
from daemon.engine.layers.ops import Ops
from daemon.engine.layers.ranks import Ranks, on_all
from daemon.engine.layers.recurrent.recurrence import Recurrence, TorchRecurrence
from daemon.engine.quantised.divided import DividedExperts, parts_of
from daemon.engine.quantised.experts import QuantisedExperts, linear_layers
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import Unpack
from daemon.engine.sampler.ops import SamplerOps

log = logging.getLogger(__name__)

Attend = Callable[[FlatBatch, PagedKV], PagedAttention]
Recur = Callable[[FlatBatch, PagedKV], Recurrence]
Multiplying = QuantisedLinear | QuantisedExperts
MakeProducts = Callable[[Sequence[Multiplying], bool], Callable[[Multiplying], Any]]
"""Takes all quantised layers and experts, and whether no states may be rounded; returns a factory
of a layer's products.
"""
Compile = Callable[[Forward, PagedKV, Slots], Programs | None]


def with_divided(here: MakeProducts, in_ram: MakeProducts | None = None) -> MakeProducts:
    """Products `here`, and of experts that the host holds as `in_ram` makes them; None: as here."""

    def products(layers: Sequence[Multiplying], exact: bool) -> Callable[[Multiplying], Any]:
        divided = {
            layer: parts_of(layer)
            for layer in layers
            if isinstance(layer, QuantisedExperts) and layer.in_ram
        }
        others = [layer for layer in layers if layer not in divided]
        above = [it.on_device for it in divided.values() if it.on_device is not None]
        below = [it.in_ram for it in divided.values() if it.in_ram is not None]
        on_device = here([*others, *above, *(below if in_ram is None else ())], exact)
        of_ram = on_device if in_ram is None or not below else in_ram(below, exact)

        def product(layer: Multiplying) -> Any:
            if layer not in divided:
                return on_device(layer)
            assert isinstance(layer, QuantisedExperts)
            parts = divided[layer]
            make = {parts.on_device: on_device, parts.in_ram: of_ram}
            return DividedExperts(layer, parts, lambda part: make[part](part))

        return product

    return products


_AS_THEY_ARE = with_divided(lambda _layers, _exact: lambda layer: layer)


@dataclass(frozen=True, slots=True)
class Backend:
    """How a device computes all but plain matrix products, and steps compiled as a whole."""

    name: str
    attend: Attend
    ops: Ops
    compile: Compile = lambda *_: None
    by_torch: ByTorch = NONE  # the families of GPU kernels that are not to be used
    products: MakeProducts = _AS_THEY_ARE  # over quantised weights
    unpack: Unpack = unpack  # quantised weights
    sampler_ops: Callable[[int], SamplerOps] | None = (
        None  # of a vocabulary; None: the device's own
    )
    recur: Recur = TorchRecurrence  # recurrent layers, where a pool holds their states
    ranks: Ranks | None = None  # that compute the model together
    rounds: bool = False  # products over quantised weights round states, unless they are exact
    compiles: Callable[[Forward, PagedKV], bool] = lambda *_: False  # whether `compile` does


def torch_backend() -> Backend:
    """Plain torch: the reference, on every device."""
    return Backend("torch", TorchAttention, Ops(), by_torch=ALL)


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    by_torch: ByTorch = NONE,
    fallen: Fallen = unheard,
) -> Backend:
    """The fastest backend that this machine has for a device and a dtype, with any KV dtype.

    On a GPU torch computes the families `by_torch`, and `fallen` is called with those that it must
    compute later on.
    """
    if device.type == "cuda":
        return torch_backend() if by_torch == ALL else _triton(dtype, by_torch, fallen)
    if dtype is torch.float32:
        try:
            return _compiled()
        except (ImportError, OSError, RuntimeError) as error:
            # No numba, a torch with another OpenMP, or nowhere to keep what is compiled.
            log.warning("compiled kernels are off, torch computes all: %s", error)
    return torch_backend()


def on_ranks(backend: Backend, ranks: Ranks) -> Backend:
    """A backend for one rank of several: steps are compiled on all ranks or on none. A GPU, where
    that only chooses products (`choose_backend` is told to capture nothing), is one that does not.
    """
    name = f"{backend.name} rank {ranks.rank} of {ranks.world_size}"

    def compile_steps(forward: Forward, cache: PagedKV, slots: Slots) -> Programs | None:
        if cache.raw.is_cuda:
            backend.compile(forward, cache, slots)
        here = not cache.raw.is_cuda and backend.compiles(forward, cache)
        return backend.compile(forward, cache, slots) if on_all(ranks, here) else None

    return replace(backend, name=name, compile=compile_steps, ranks=ranks)


def _compiled() -> Backend:
    from daemon.engine.cpu import program
    from daemon.engine.cpu.calls import Constants
    from daemon.engine.cpu.choose_products import choose_products
    from daemon.engine.cpu.experts import ExpertProducts, KeptBuffers, can_group
    from daemon.engine.cpu.kernels import run_program
    from daemon.engine.cpu.latent import cpu_attention
    from daemon.engine.cpu.ops import CpuOps
    from daemon.engine.cpu.quantised import QuantisedProduct, can_multiply, unpacked
    from daemon.engine.cpu.recurrence import MakeRecurrence
    from daemon.engine.cpu.sampler_ops import CpuSamplerOps
    from daemon.engine.cpu.team import Team

    team, constants = Team(run_program), Constants({})

    def attend(batch: FlatBatch, cache: PagedKV) -> PagedAttention:
        return cpu_attention(batch, cache, team, constants)

    def compile_steps(forward: Forward, cache: PagedKV, slots: Slots) -> Programs | None:
        if not isinstance(forward, Decoder) or not program.possible(forward, cache):
            return None
        return program.StepPrograms(forward, cache, slots, team, constants)

    def products(layers: Sequence[Multiplying], exact: bool) -> Callable[[Multiplying], Any]:
        grouped = {
            layer for layer in layers if isinstance(layer, QuantisedExperts) and can_group(layer)
        }
        single = [layer for layer in layers if layer not in grouped]
        linears = [linear for layer in single for linear in linear_layers(layer)]
        weights = [weight for layer in linears for weight in layer.weights]
        ways = choose_products(filter(can_multiply, weights), team, exact)
        of_experts = [it for experts in grouped for la in experts.layers for it in la.weights]
        expert_ways, kept = choose_products(of_experts, team, exact, in_calls=True), KeptBuffers()
        nothing_rounds = ways.exact and expert_ways.exact

        def product(layer: Multiplying) -> Any:
            if layer in grouped:
                return ExpertProducts(layer, team, expert_ways, kept, nothing_rounds)
            if isinstance(layer, QuantisedExperts):
                return layer.prepared(product, nothing_rounds)
            if not all(map(can_multiply, layer.weights)):
                return layer
            return QuantisedProduct(layer.weights, layer.bias, team, ways)

        return product

    return Backend(
        "numba",
        attend,
        CpuOps(team, constants),
        compile_steps,
        products=with_divided(products),
        unpack=partial(unpacked, team),
        recur=MakeRecurrence(team),
        sampler_ops=partial(CpuSamplerOps, team=team),
        rounds=True,
        compiles=lambda it, cache: isinstance(it, Decoder) and program.possible(it, cache),
    )


def _triton(dtype: torch.dtype, by_torch: ByTorch, fallen: Fallen) -> Backend:
    from daemon.engine.cuda.graphs import DecodeGraphs, cuda_capture, padded_sizes
    from daemon.engine.cuda.products import choose_products

    def compile_steps(forward: Forward, cache: PagedKV, slots: Slots) -> Programs | None:
        rows = padded_sizes(len(slots.block_table))
        choose_products(forward.products(), rows, by_torch=by_torch)
        if not captures(forward, cache, by_torch):
            return None
        return DecodeGraphs(forward, cache, slots, cuda_capture(), fallen)

    return triton_backend(dtype, by_torch, compile_steps)


def captures(forward: Forward, cache: PagedKV, by_torch: ByTorch) -> bool:
    """Whether a GPU's decode steps can be captured."""
    # Which experts compute is read on the host where these compute one by one, which no graph
    # does; a captured step reads one block of all layers, and no states.
    kinds = QuantisedExperts | DividedExperts
    on_host = any(isinstance(product, kinds) for product in forward.products())
    read = cache.num_groups > 1 or cache.latent or cache.state_pages
    return not (on_host or read or by_torch & {GRAPHS, *CAPTURED})


def triton_backend(dtype: torch.dtype, by_torch: ByTorch, compile_steps: Compile) -> Backend:
    """Triton's kernels for states of type `dtype`, but for the families that torch computes."""
    from daemon.engine.cuda.attention import CudaAttention
    from daemon.engine.cuda.latent import row_attention
    from daemon.engine.cuda.mixed_attention import mixed
    from daemon.engine.cuda.ops import TritonOps
    from daemon.engine.cuda.recurrence import MakeCudaRecurrence

    def attend(batch: FlatBatch, cache: PagedKV) -> PagedAttention:
        if cache.latent:
            return row_attention(batch, cache, by_torch)
        if by_torch & {WRITE, DECODE, PREFILL}:
            return mixed(batch, cache, by_torch)
        return CudaAttention.of(batch, cache)

    name = " ".join(["triton", *(f"-{family}" for family in sorted(by_torch))])
    recur: Recur = TorchRecurrence if STATES in by_torch else MakeCudaRecurrence()
    backend = Backend(name, attend, TritonOps(by_torch), compile_steps, by_torch, recur=recur)
    if BLOCKS in by_torch:
        return backend
    from daemon.engine.cuda.quantised import products
    from daemon.engine.cuda.unpacking import unpack

    here = with_divided(lambda layers, _exact: products(layers, dtype, by_torch), _on_host)
    return replace(backend, products=here, unpack=unpack)


def _on_host(layers: Sequence[Multiplying], exact: bool) -> Callable[[Multiplying], Any]:
    """Products of the CPU beside a GPU."""
    return choose_backend(torch.device("cpu"), torch.float32).products(layers, exact)
