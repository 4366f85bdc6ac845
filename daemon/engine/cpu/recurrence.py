"""Recurrent layers on the CPU: each is one call, which reads and writes states in their pages."""

from collections.abc import Sequence

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu.recurrent_calls import StateCalls, StateRows
from daemon.engine.cpu.team import HERE_ELEMENTS, Call, Team
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.state_places import StatePlaces
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Scan


class CpuRecurrence:
    """See `Recurrence`; for float32 states and pools of any type."""

    def __init__(self, calls: StateCalls, team: Team) -> None:
        self._calls, self._team = calls, team

    def convolve(self, layer: int, convolution: Convolution) -> torch.Tensor:
        """See `Recurrence`."""
        inputs, weight = _dense(convolution.inputs, 1), convolution.weight.contiguous()
        output = torch.empty(inputs.shape)
        dense = convolution._replace(inputs=inputs, weight=weight)
        call = self._calls.convolve(layer, dense, output)
        self._run(weight.shape[1] * inputs.numel(), call)
        return output

    def delta_rule(self, layer: int, rule: DeltaRule) -> torch.Tensor:
        """See `Recurrence`."""
        query, key, value = (_dense(part, 2) for part in rule[:3])
        decay, beta = rule.decay.contiguous(), rule.beta.contiguous()
        output = torch.empty(value.shape)
        call = self._calls.delta_rule(layer, DeltaRule(query, key, value, decay, beta), output)
        self._run(value.numel() * key.shape[2], call)
        return output

    def chunk_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        inputs, write, read = (_dense(part, 2) for part in (scan.inputs, scan.write, scan.read))
        steps, rates = scan.steps.contiguous(), scan.rates.contiguous()
        output = torch.empty(inputs.shape)
        dense = scan._replace(inputs=inputs, steps=steps, rates=rates, write=write, read=read)
        call = self._calls.chunk_scan(layer, dense, output)
        self._run(inputs.numel() * write.shape[2], call)
        return output

    def selective_scan(self, layer: int, scan: Scan) -> torch.Tensor:
        """See `Recurrence`."""
        inputs, steps = _dense(scan.inputs, 1), _dense(scan.steps, 1)
        write, read = _dense(scan.write, 1), _dense(scan.read, 1)
        rates = scan.rates.contiguous()
        output = torch.empty(inputs.shape)
        dense = scan._replace(inputs=inputs, steps=steps, rates=rates, write=write, read=read)
        call = self._calls.selective_scan(layer, dense, output)
        self._run(inputs.numel() * rates.shape[1], call)
        return output

    def _run(self, elements: int, call: Call) -> None:
        run = self._team.run_here if elements <= HERE_ELEMENTS else self._team.run
        run(call)


class MakeRecurrence:
    """Makes each step's recurrence; the places of states are kept for all steps of a pool."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._places: StatePlaces | None = None

    def __call__(self, batch: FlatBatch, cache: PagedKV) -> CpuRecurrence:
        """The recurrence of a batch over a pool with states."""
        assert cache.layout is not None, "a pool with states has a layout"
        if self._places is None or self._places.layout is not cache.layout.states:
            self._places = StatePlaces.of(cache)
        rows = StateRows(cache, len(batch.counts), self._places)
        rows.fill(batch)
        return CpuRecurrence(StateCalls(rows, len(batch.counts)), self._team)


def _dense(states: torch.Tensor, dims: int) -> torch.Tensor:
    """`states`, float32, whose last `dims` dimensions are dense."""
    inner = states.shape[-dims:]
    expected: Sequence[int] = (inner[1], 1) if dims == 2 else (1,)
    return states if states.stride()[-dims:] == (*expected,) else states.contiguous()
