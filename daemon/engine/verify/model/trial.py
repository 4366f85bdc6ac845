"""The fastest way to compute a loaded model that was found to be right on this device."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from daemon.base.logs import in_a_line
from daemon.config.paths import cache_of
from daemon.engine.kv.eight_bit import KV_DTYPES
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.fuse import fuse
from daemon.engine.layers.modules import Modules
from daemon.engine.layers.prepare import prepare_linears
from daemon.engine.layers.ranks import RankError, from_all, on_all, on_any
from daemon.engine.model.backend import torch_backend
from daemon.engine.model.linear import linear_bytes, packed
from daemon.engine.model.model import CausalModel
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear, count_params, quantised_layers
from daemon.engine.quantised.unpack import unpack
from daemon.engine.verify.model import kept, reference, script, wide
from daemon.engine.verify.model.judge import (
    ROUTED_TIMES,
    TIMES,
    Expected,
    Finding,
    far_finding,
    judge,
    repeated_finding,
    worst,
)
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.verify.model.listen import listen
from daemon.engine.verify.model.script import TrialRoom, Wave, WaveSequence
from daemon.engine.verify.model.served import TrialPool, compute, far_steps, repeated_steps
from daemon.memory.sizing import KEEP_BOTH_BYTES
from daemon.models.shape import ModelError, ModelShape
from daemon.protocol.worker import Load

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]

_FLOAT_BYTES = 4
_ASSUMED = {torch.bfloat16: 0.02, torch.float16: 0.003}
"""How far rounding leads, in spreads of the logits, where it could not be measured."""
_WRONG = "trial: %s would be wrong: %s; it is not used"
_BEGIN, _FUSE, _PRODUCTS, _TRIAL, _END = 0.76, 0.8, 0.81, 0.82, 0.9
"""Shares of a whole start at which the stages begin."""


def fastest(
    model: Any,
    shape: ModelShape,
    load: Load,
    pool: TrialPool,
    progress: Progress,
    verdict: TrialVerdict | None = None,
) -> CausalModel:
    """The fastest way to compute transformers' `model` that gives its own logits.

    A `verdict` is trusted, as is a kept one of an equal model on an equal device. The model may not
    be used afterwards. Raises ModelError where no way gives its logits.
    """
    trial = _Trial(model, shape, load, pool, progress)
    verdict = verdict or trial.known()
    return trial.tried() if verdict is None else trial.made(verdict)


class _Trial:
    """A model's trial, from its references to a verdict."""

    def __init__(
        self, model: Any, shape: ModelShape, load: Load, pool: TrialPool, progress: Progress
    ) -> None:
        self._model, self._shape, self._load, self._pool = model, shape, load, pool
        self._ranks = pool.backend.ranks
        self._progress = progress
        self._verdicts = kept.verdicts(cache_of(load.cache))
        keep_plain = linear_bytes(model) <= KEEP_BOTH_BYTES
        layers = [layer for _, layer in quantised_layers(model)]
        # A stage may have all layers of a kind. What the trial goes by is the same on all ranks.
        may_round = any(it.format.may_round for layer in layers for it in layer.weights)
        rounds = pool.backend.rounds and may_round and not load.exact
        self._products_round, self._own_round = on_any(self._ranks, rounds), rounds
        quantised = pool.backend.products(_multiplying(model), load.exact)
        self._prepare = partial(packed, keep_plain=keep_plain, quantised=quantised)
        # A GPU unpacks anew as fast, and the pool has its memory already.
        most_bytes = 0 if pool.cache.raw.is_cuda else KEEP_BOTH_BYTES
        numbers = sum(weight.rows * weight.columns for layer in layers for weight in layer.weights)
        # Of several ranks, some may have layers that others do not.
        all_bytes = _FLOAT_BYTES * numbers if self._ranks is None else 0
        self._unpack = wide.Remembering(pool.backend.unpack, most_bytes, all_bytes)
        for layer in layers:
            is_linear = isinstance(layer, QuantisedLinear)
            layer.unpack = self._unpack if is_linear else pool.backend.unpack
            if pool.cache.raw.is_cuda and not all(it.data.is_cuda for it in layer.weights):
                layer.unpack = unpack  # of experts in host memory, which no GPU reads
        num_cells = pool.slots.block_table.shape[1]
        self._num_positions = pool.cache.row_blocks(num_cells) * pool.cache.block_size
        if not pool.cache.num_groups:  # states alone have room for any length
            self._num_positions = max(self._num_positions, load.max_len)
        self._room = _room(load, pool, shape)
        self._borders = script.thresholds(model.config.to_dict(), self._room.longest)
        num_params = count_params(model)
        if self._ranks is not None:
            num_params = sum(from_all(self._ranks, num_params))
        cache = pool.cache
        narrow = cache.dtype != torch.float32 or cache.scales is not None
        # Whether serving rounds what the exact forward does not, on any of the ranks' devices.
        self._rounds = on_any(self._ranks, narrow or self._products_round)
        budget = script.budget_tokens(
            num_params, on_all(self._ranks, cache.raw.is_cuda), self._rounds
        )
        self._waves = script.write(self._room, budget, self._borders, _padding(model))
        has_experts = any(name.endswith(".experts") for name, _ in model.named_modules())
        experts = on_any(self._ranks, has_experts)
        self._times = ROUTED_TIMES if experts else TIMES
        self._key = kept.key_of(model, load, pool.backend.name, self._waves)
        self._expected: list[list[Expected]] = []
        self._worst = Finding(0.0, 0.0, "")
        self._windows: tuple[int, ...] = ()
        self._unrounded_fits = True
        self._steps, self._share = 0, 0.0

    def known(self) -> TrialVerdict | None:
        """The verdict of an equal trial; None where there was none."""
        verdict = self._verdicts.read(self._key)
        if self._ranks is not None:  # each rank has its own
            found = from_all(self._ranks, kept.number_of(verdict))
            verdict = verdict if len(set(found)) == 1 else None
        if verdict is not None:
            log.debug("trial: passed before, %s", _in_words(verdict))
        return verdict

    def tried(self) -> CausalModel:
        """The model in the fastest way that is right. Raises ModelError where none is."""
        try:
            return self._try()
        except (ModelError, RankError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            said = f"its modelling code cannot be tried: {in_a_line(error)}"
            raise ModelError(f"{self._name}: {said}") from error

    def _try(self) -> CausalModel:
        began = time.perf_counter()
        self._say("reference", _BEGIN)
        asked = listen(self._model, self._shape, self._load.max_len)
        if asked.reasons:
            name = self._shape.model_type
            raise ModelError(f"{self._load.model}: {name} is not supported yet: {asked.reasons[0]}")
        self._windows = asked.sliding
        self._unpack.end_layer()
        self._expected = self._expect()
        fused = self._structure()
        self._unpack.forget()
        best, verdict = self._best(fused)
        self._verdicts.keep(self._key, verdict)
        num_tokens = sum(
            len(sequence.tokens) for wave in self._waves for sequence in wave.sequences
        )
        log.debug(
            "trial: %s; %d logits at positions up to %d%s against transformers' own in %.1f s; "
            "the worst: %s",
            _in_words(verdict),
            num_tokens,
            max(
                sequence.first + len(sequence.tokens)
                for wave in self._waves
                for sequence in wave.sequences
            )
            - 1,
            f", around {_listed(self._borders)}" if self._borders else "",
            time.perf_counter() - began,
            self._worst,
        )
        return best

    def _best(self, fused: bool) -> tuple[CausalModel, TrialVerdict]:
        """The straight decoder, or else the modules; with compiled steps if they are right."""
        finding = Finding(0.0, 0.0, "")
        for is_fused in (True, False)[not fused :]:
            verdict = TrialVerdict(is_fused, True, self._windows)
            if not verdict.fused and fused:
                self._try_modules()
            made = self.made(verdict)
            if made.fused != verdict.fused:
                continue  # of another shape: the modules come next
            ways = [(made, verdict)]
            if made.compiled:
                uncompiled = msgspec.structs.replace(verdict, compiled=False)
                ways.append((made.uncompiled, uncompiled))
            for way, outcome in ways:
                finding = self._judged(way)
                if not finding.wrong:
                    self._worst = finding
                    return way, outcome
                log.warning(_WRONG, _in_words(outcome), finding)
        raise ModelError(f"{self._name} would be answered wrongly: {finding}")

    @property
    def _name(self) -> str:
        return f"{self._load.model} ({self._shape.model_type})"

    def made(self, verdict: TrialVerdict) -> CausalModel:
        """The model in one way. Once it was fused it can be computed by its modules, not again."""
        self._say("fuse", _FUSE)
        made: CausalModel | None = None
        if verdict.fused:
            ops = self._pool.backend.ops
            decoder = fuse(
                self._model, ops, self._prepare, self._num_positions, windows=verdict.windows
            )
            decoder = self._of_all(decoder)
            if decoder is None:
                return self._by_modules(verdict.windows)
            made = CausalModel(decoder, self._ranks)
        else:
            prepare_linears(self._model, self._prepare)
            made = self._by_modules(verdict.windows)
        if verdict.compiled:
            self._say("products", _PRODUCTS)
            made.compile_steps(self._pool.backend, self._pool.cache, self._pool.slots)
        return made

    def _of_all(self, decoder: Decoder | None) -> Decoder | None:
        """A decoder, where all ranks have one of their parts."""
        return decoder if on_all(self._ranks, decoder is not None) else None

    def _by_modules(self, windows: tuple[int, ...]) -> CausalModel:
        return CausalModel(Modules(self._model, windows), self._ranks)

    def _expect(self) -> list[list[Expected]]:
        """Logits of each wave's sequences as transformers computes them, each sequence alone."""
        tried = [sequence for wave in self._waves for sequence in wave.sequences]
        rounded, assumed = self._rounded(tried), 0.0
        exact = self._exact(tried)
        if exact is None:
            assert rounded is not None
            exact, assumed = rounded, _ASSUMED[self._pool.cache.dtype]
        if not all(bool(logits.isfinite().all()) for logits in exact):
            raise ModelError(f"{self._name}: its logits are not numbers")
        pairs = zip(exact, rounded or [None] * len(exact), strict=True)
        found = (Expected(*pair, assumed, self._times) for pair in pairs)
        return [[next(found) for _ in wave.sequences] for wave in self._waves]

    def _exact(self, tried: list[WaveSequence]) -> list[torch.Tensor] | None:
        """The logits in float32; None where there is no memory for that."""
        try:
            with reference.attention(self._model, "eager"), wide.widened(self._model):
                return self._logits(tried)
        except torch.OutOfMemoryError:
            if not self._rounds or self._ranks is not None:  # others have the memory, and go on
                raise
        log.warning("trial: no memory for float32: faults of the size of rounding may hide")
        self._unrounded_fits = False
        torch.cuda.empty_cache()
        return None

    def _rounded(self, tried: list[WaveSequence]) -> list[torch.Tensor] | None:
        """The logits with the rounding of serving; None where it rounds nothing."""
        if not self._rounds:
            return None
        kv_dtype = KV_DTYPES[self._load.kv_dtype]
        eager = reference.attention(self._model, "eager")
        with ExitStack() as stack:
            stack.enter_context(
                eager if kv_dtype is None else reference.rounding(self._model, kv_dtype)
            )
            if self._own_round:
                stack.enter_context(reference.rounding_products(self._model))
            return self._logits(tried)

    def _logits(self, tried: list[WaveSequence]) -> list[torch.Tensor]:
        """transformers' own, of the model as it is set now."""
        return reference.logits_of(self._model, tried, self._end_layer, self._unpack.by_layers)

    def _end_layer(self) -> None:
        self._unpack.end_layer()
        self._tell("reference")

    def _structure(self) -> bool:
        """Whether the straight decoder computes what the model does. Raises ModelError where
        neither it does nor the modules with our attention.

        Where serving rounds, all is computed unrounded first: rounds hide faults of their size.
        """
        if not self._unrounded_tells:
            return True
        tried = [sequence for wave in self._waves for sequence in wave.sequences]
        used = np.unique(np.concatenate([sequence.tokens for sequence in tried]))
        decoder = wide.wide_decoder(
            self._model, self._num_positions, torch.from_numpy(used), self._windows
        )
        decoder = self._of_all(decoder)
        if decoder is not None:
            renamed = [script.renamed(wave, used) for wave in self._waves]
            finding = self._unrounded(CausalModel(decoder, self._ranks), renamed)
            if not finding.wrong:
                return True
            log.warning(_WRONG, _in_words(TrialVerdict(True, True)), finding)
        self._try_modules()
        return False

    def _try_modules(self) -> None:
        """Raise ModelError where the modules with our attention do not compute, unrounded, what the
        model does.
        """
        if not self._unrounded_tells:
            return
        with wide.widened(self._model):
            finding = self._unrounded(self._by_modules(self._windows), self._waves)
        if finding.wrong:
            raise ModelError(f"{self._name} would be answered wrongly: {finding}")

    @property
    def _unrounded_tells(self) -> bool:
        return self._rounds and self._unrounded_fits

    def _unrounded(self, made: CausalModel, waves: list[Wave]) -> Finding:
        """The worst of what `made` computes in float32."""
        found, pool = [], self._wide_pool()
        for wave, expected in zip(waves, self._expected, strict=True):
            parts = compute(made, wave, pool, self._end_layer, self._unpack.by_layers)
            exact = [Expected(logits.exact, None) for logits in expected]
            found += judge(parts, exact, pool.cache.block_size)
        return worst(found)

    def _wide_pool(self) -> TrialPool:
        """A float32 pool for the largest wave, computed in plain torch."""
        cache = self._pool.cache
        sizes = cache.block_size, self._room.state_blocks
        needed = max(script.num_blocks(wave, *sizes) for wave in self._waves)
        floats = cache.twin(needed * max(cache.num_groups, 1), torch.float32)
        return TrialPool(floats, self._pool.slots, torch_backend())

    def _judged(self, made: CausalModel) -> Finding:
        """The worst of what `made` computes."""
        found = []
        for wave, expected in zip(self._waves, self._expected, strict=True):
            parts = compute(made, wave, self._pool, lambda: self._tell("trial"))
            found += judge(parts, expected, self._pool.cache.block_size)
        far = far_steps(made, self._far_starts(), self._pool)
        if far is not None:
            found.append(far_finding(*far, [logits for wave in self._expected for logits in wave]))
        rows = min(2, self._room.max_slots, self._room.num_blocks // 2)
        repeated = repeated_steps(made, self._room.longest, rows, self._pool)
        if repeated is not None:
            found.append(repeated_finding(*repeated))
        return worst(found)

    def _far_starts(self) -> list[int]:
        """Tokens in the cache before a step at the longest, and at half of it, if there is room."""
        longest = self._room.longest - 1
        room = (self._room.num_blocks - 1) // (1 + self._room.state_blocks)
        rows = min(2, self._room.max_slots, room)
        return [longest, longest // 2][:rows]

    def _tell(self, stage: str) -> None:
        """Report progress: shares rise towards the next stage's and never reach it."""
        self._steps += 1
        begin, end = (_BEGIN, _FUSE) if stage == "reference" else (_TRIAL, _END)
        self._say(stage, end - (end - begin) / (1 + self._steps))

    def _say(self, stage: str, share: float) -> None:
        """Report a share, which never falls, though another way may have to be tried."""
        self._share = max(self._share, share)
        self._progress(stage, self._share)


def _multiplying(model: Any) -> list[QuantisedLinear | QuantisedExperts]:
    """The layers over quantised weights that products are made of, experts as one."""
    experts = [module for module in model.modules() if isinstance(module, QuantisedExperts)]
    within = {layer for module in experts for layer in module.layers}
    layers = [layer for _, layer in quantised_layers(model) if layer not in within]
    return [*(layer for layer in layers if isinstance(layer, QuantisedLinear)), *experts]


def _room(load: Load, pool: TrialPool, shape: ModelShape) -> TrialRoom:
    num_groups = max(pool.cache.num_groups, 1)
    return TrialRoom(
        block_size=pool.cache.block_size,
        num_blocks=pool.cache.num_blocks // num_groups,
        state_blocks=-(-pool.cache.state_pages // num_groups),
        max_slots=load.max_slots,
        max_len=load.max_len,
        max_batch_tokens=load.max_batch_tokens,
        vocab_size=shape.vocab_size,
    )


def _padding(model: Any) -> int | None:
    """The padding token: some models count positions without it."""
    token = getattr(model.config, "pad_token_id", None)
    return token if isinstance(token, int) else None


def _in_words(verdict: TrialVerdict) -> str:
    how = "the fused decoder" if verdict.fused else "transformers' modules"
    return how if verdict.compiled else f"{how} without compiled steps"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
