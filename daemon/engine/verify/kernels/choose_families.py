"""The families of kernels that a card may use: by an earlier verdict, or a self-test now."""

import contextlib
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from daemon.config.paths import cache_of
from daemon.engine.families import ALL, FAMILIES, NONE, ByTorch, Fallen
from daemon.engine.kv.eight_bit import KV_DTYPES, kv_fault
from daemon.engine.layers.fuse import MERGED
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.verify.kernels import kept
from daemon.engine.verify.kernels.kept import CardStack, Verdict
from daemon.engine.verify.kernels.recurrent_layers import recurrent_layers
from daemon.engine.verify.kernels.run import CHILD, SelfTestError, Tell, run
from daemon.engine.verify.kernels.subject import Subject
from daemon.memory.sizing import heads_of
from daemon.models.shape import ModelShape
from daemon.protocol.worker import Load

log = logging.getLogger(__name__)

BY_TORCH = "torch"
"""The value of `engine.kernels` that trusts no kernel."""
_DRIVER = Path("/proc/driver/nvidia/version")
_NUMBER = re.compile(r"\d+\.\d+(\.\d+)*")
_ROWS = 256
"""Most rows that products are tried for: beyond, the library computes them all."""


def by_torch(load: Load, model: Any, shape: ModelShape, tell: Tell, fallen: Fallen) -> ByTorch:
    """The families of GPU kernels that torch computes for a loaded model; none on a CPU.

    `tell` is called with each family that is tried, `fallen` with each that torch computes and why.
    Blocks for some seconds where the card was not tried yet.
    """
    device = torch.device(load.device)
    if device.type != "cuda" or kv_fault(KV_DTYPES[load.kv_dtype], device):
        return NONE  # no kernels, or a pool that the start refuses
    if load.kernels == BY_TORCH:
        why = f"engine.kernels = {BY_TORCH!r}"
        log.warning("torch computes all on %s: %s", device, why)
        return _told(dict.fromkeys(FAMILIES, why), fallen)
    folder = cache_of(load.cache)
    return trusted(folder, card_of(device), subject_of(load, model, shape), tell, fallen)


def trusted(
    folder: Path,
    card: CardStack,
    subject: Subject,
    tell: Tell,
    fallen: Fallen,
    command: Sequence[str] = CHILD,
) -> ByTorch:
    """The families that torch computes on a card: as kept in a cache folder, or found now.

    What cannot be tried is torch's.
    """
    verdict = kept.read(folder, card, subject)
    if verdict is None:
        try:
            verdict = _tried(folder, card, subject, tell, command)
        except SelfTestError as error:
            log.warning("torch computes all: the kernels cannot be tried here: %s", error)
            return _told(dict.fromkeys(FAMILIES, str(error)), fallen)
    for family, why in verdict.faults.items():
        log.warning("torch computes %s (%s) on this card: %s", family, FAMILIES[family], why)
    if not verdict.faults:
        log.info("self-test: every kernel computes on %s what torch does", card.name)
    return _told(verdict.faults, fallen)


def _tried(
    folder: Path, card: CardStack, subject: Subject, tell: Tell, command: Sequence[str]
) -> Verdict:
    """A verdict by a self-test; it is kept where it says something about the card."""
    log.info("self-test: first use of %s for such a model", card.name)
    found = run(subject, tell, command=command)
    verdict = Verdict(card, subject, kept.code(), found.faults)
    if not found.passing:
        kept.keep(folder, verdict)
    return verdict


def _told(faults: dict[str, str], fallen: Fallen) -> ByTorch:
    for family, why in faults.items():
        fallen(family, why)
    return ALL & frozenset(faults)


def card_of(device: torch.device) -> CardStack:
    """The machine that a verdict holds for: card, driver and libraries."""
    driver = ""
    with contextlib.suppress(OSError):
        found = _NUMBER.search(_DRIVER.read_text())
        driver = found.group() if found else ""
    major, minor = torch.cuda.get_device_capability(device)
    return CardStack(
        name=torch.cuda.get_device_name(device),
        capability=f"{major}.{minor}",
        driver=driver,
        torch=torch.__version__,
        triton=kept.version_of("triton"),
        cuda=torch.version.cuda or "",
    )


def subject_of(load: Load, model: Any, shape: ModelShape) -> Subject:
    """The model that a verdict holds for: shapes and types alone."""
    gated = getattr(model.config, "intermediate_size", None)
    layers = [layer for _, layer in quantised_layers(model)]
    mixtures = [module for module in model.modules() if isinstance(module, QuantisedExperts)]
    return Subject(
        device=load.device,
        dtype=load.dtype,
        kv_dtype=load.kv_dtype,
        block_size=load.block_size,
        max_blocks=-(-load.max_len // load.block_size) + 1,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rotary_dim=_rotary_dim(model, shape),
        head_norms=any(name.endswith(".q_norm") for name, _ in model.named_modules()),
        hidden=shape.hidden_size,
        gated=gated if isinstance(gated, int) else 4 * shape.hidden_size,
        vocab=shape.vocab_size,
        products=_products(model),
        quantised=_quantised(layers),
        experts=_quantised([layer for experts in mixtures for layer in experts.layers]),
        compress=load.compress,
        most_rows=min(load.max_slots, _ROWS),
        recurrent=recurrent_layers(model),
        latent=max((heads.latent for heads in heads_of(shape)), default=0),
    )


def _rotary_dim(model: Any, shape: ModelShape) -> int:
    """Numbers of a head that are rotated; all of them where no module says so."""
    speeds = getattr(getattr(model.base_model, "rotary_emb", None), "inv_freq", None)
    return shape.head_dim if speeds is None else 2 * len(speeds)


def _quantised(layers: Iterable[Any]) -> tuple[tuple[str, int, int], ...]:
    """Formats and sizes of all weights of some layers that stay in blocks."""
    held = [weight for layer in layers for weight in layer.weights]
    return tuple(
        sorted(
            {(weight.format.name, *weight.shape) for weight in held if weight.format.block_len > 1}
        )
    )


def _products(model: Any) -> tuple[tuple[int, int, bool], ...]:
    """Sizes of all products: those of each linear layer, and of those that may be merged."""
    found = set()
    for module in model.modules():
        linears = {
            name: child for name, child in module.named_children() if type(child) is nn.Linear
        }
        merged = [names for names in MERGED if linears.keys() >= set(names)]
        for names in (*merged, *((name,) for name in linears)):
            group = [linears[name] for name in names]
            bias = any(linear.bias is not None for linear in group)
            found.add((sum(linear.out_features for linear in group), group[0].in_features, bias))
    return tuple(sorted(found))
