"""Verdicts of earlier trials: a small file for each, and what a verdict holds for."""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from daemon import __version__
from daemon.base.kept import KeptResults
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.verify.kernels.kept import code, version_of
from daemon.engine.verify.model.script import Wave
from daemon.protocol.worker import Load

_LIBRARIES = ("torch", "transformers", "triton", "numba", "safetensors")


class TrialVerdict(msgspec.Struct, frozen=True):
    """The ways in which a model may be computed."""

    fused: bool  # by the straight decoder, not by transformers' modules
    compiled: bool  # decode steps as compiled programs
    windows: tuple[int, ...] = ()  # of each layer, tokens; empty: every layer sees all


def key_of(model: Any, load: Load, backend: str, waves: Sequence[Wave]) -> str:
    """A key of all that a trial's result may depend on, but for the values of the weights."""
    digest = hashlib.blake2b(digest_size=16)
    config = {**model.config.to_dict(), "_name_or_path": None}
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in model.state_dict().items()
    ]
    quantised = [
        (
            name,
            [
                (weight.format.name, weight.rows, weight.columns, weight.order is None)
                for weight in la.weights
            ],
        )
        for name, la in quantised_layers(model)
    ]
    angles = [
        (name, buffer.sum().item(), len(buffer))
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq")
    ]  # some are chosen by the longest sequence that is served
    sizes = load.block_size, load.max_slots, load.max_len, load.num_threads
    settings = (load.dtype, load.kv_dtype, *sizes, backend, load.exact, load.experts_on_cpu)
    versions = [version_of(name) for name in _LIBRARIES]
    parts = (
        config,
        tensors,
        angles,
        quantised,
        settings,
        versions,
        _device(load.device),
        __version__,
        code(),
    )
    for part in parts:
        digest.update(repr(part).encode())
    for wave in waves:
        for sequence in wave.sequences:
            digest.update(
                repr((sequence.slot, sequence.first, sequence.counts, sequence.begins)).encode()
            )
            digest.update(sequence.tokens.tobytes())
    return digest.hexdigest()


def number_of(verdict: TrialVerdict | None) -> int:
    """A number that unlike verdicts do not share, but for the windows of layers; 0: none."""
    return 0 if verdict is None else 1 + verdict.fused + 2 * verdict.compiled


def verdicts(cache: Path) -> KeptResults[TrialVerdict]:
    """The verdicts in a cache folder."""
    return KeptResults(cache / "trials", TrialVerdict)


def _device(name: str) -> str:
    device = torch.device(name)
    if device.type != "cuda":
        return f"{device.type} {torch.backends.cpu.get_cpu_capability()} {processor()}"
    return f"cuda {torch.cuda.get_device_name(device)} {torch.version.cuda}"


def processor() -> str:
    """The processor that kernels are compiled for: a cache may come from another machine. Empty
    where there is no compiler.
    """
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from daemon.engine.cpu.vectors import target

        return target()
    return ""
