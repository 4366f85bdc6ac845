"""Many forward passes side by side: all of them through a layer, then all through the next.

So a layer's weights are unpacked once for all. Each pass computes what it does alone, in the same
order, to the bit. Of transformers' models this holds where each layer takes the states that the one
before gave, and nothing else that depends on them; whether it does, marked states show.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.recurrent.functions import recurring
from daemon.engine.layers.recurrent.recurrence import Recurrence

_STATES = "hidden_states"
"""The name, in modelling code, of the states that a layer takes."""

_RAISED = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError

Pass = Callable[[], torch.Tensor]
"""A whole forward pass of a model over some tokens."""


class DecoderStep(NamedTuple):
    """One step of a decoder, all of whose tokens are sampled."""

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    paged: PagedAttention
    recurrence: Recurrence | None  # of layers that keep states


def decoded(
    decoder: Decoder, steps: Sequence[DecoderStep], between: Callable[[], None]
) -> list[torch.Tensor]:
    """Logits [T, vocab] of steps, of which each may read what those before it write. `between` is
    called behind each layer.
    """
    residuals = [decoder.begun(step.tokens, step.positions) for step in steps]
    for layer in decoder.layers:
        for step, residual in zip(steps, residuals, strict=True):
            states = step.recurrence
            with nullcontext() if states is None else recurring(states):
                decoder.through(layer, residual, step.paged)
        between()
    logits = [decoder.head(decoder.ended(residual)).clone() for residual in residuals]
    between()
    return logits


def computed(model: Any, passes: Sequence[Pass], between: Callable[[], None]) -> list[torch.Tensor]:
    """The result of each of some passes of transformers' `model`. `between` is called behind each
    layer, or behind each pass where its layers cannot be computed so.
    """
    layers = _layers(model)
    try:
        heard = [_heard(layers, each) for each in passes]
        states = [each.states for each in heard]
        for number, layer in enumerate(layers):
            calls = [each.calls[number] for each in heard]
            states = [_through(layer, *pair) for pair in zip(calls, states, strict=True)]
            between()
        found = [_ended(layers, *pair) for pair in zip(passes, states, strict=True)]
    except (_UnlikeError, *_RAISED):  # it may look for what layers told on their way
        return [told(each, between) for each in passes]
    between()
    return found


class _Call(NamedTuple):
    """The arguments of a call of a layer."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def states(self) -> Any:
        """The states that it takes."""
        return self.arguments[0] if self.arguments else self.named.get(_STATES)

    def others(self) -> list[Any]:
        """All that it was given besides."""
        named = [given for name, given in self.named.items() if name != _STATES]
        return [*self.arguments[1:], *named]


class _Heard(NamedTuple):
    """The states before a pass's first layer, and how each layer is called."""

    states: torch.Tensor
    calls: list[_Call]


class _UnlikeError(Exception):
    """The layers do not hand on states one to the next, and these alone."""


class _AllCalledError(Exception):
    """Ends a pass whose last layer was called. torch calls what is to follow a module always behind
    an Exception alone.
    """


def _layers(model: Any) -> list[nn.Module]:
    """All layers of a model, in their order; empty: it has none of their own."""
    count = getattr(model.config, "num_hidden_layers", 0)
    lists = (it for it in model.modules() if isinstance(it, nn.ModuleList) and len(it) == count)
    found = list(next(lists, ()))
    return found if len(set(found)) == count else []


def told(each: Pass, between: Callable[[], None]) -> torch.Tensor:
    """A pass's result; `between` is called behind it."""
    found = each()
    between()
    return found


def _heard(layers: list[nn.Module], each: Pass) -> _Heard:
    """A pass in which no layer computes. Raises _UnlikeError."""
    calls, marks = list[_Call](), list[torch.Tensor]()

    def hear(number: int, call: _Call) -> torch.Tensor:
        if number != len(calls) or not isinstance(call.states, torch.Tensor):
            raise _UnlikeError
        if marks and not _is_mark(call.states, marks[-1], number):
            raise _UnlikeError
        if any(bool(tensor.isnan().any()) for tensor in _tensors(call.others())):
            raise _UnlikeError  # of marked states
        calls.append(call)
        marks.append(_mark(call.states, number + 1))
        if len(calls) == len(layers):
            raise _AllCalledError
        return marks[-1]

    with _in_place_of(layers, hear):
        try:
            each()
        except _AllCalledError:
            return _Heard(calls[0].states, calls)
        except _RAISED:  # by code that takes something else from its layers
            pass
    raise _UnlikeError


def _through(layer: nn.Module, call: _Call, states: torch.Tensor) -> torch.Tensor:
    """The states behind a layer."""
    if call.arguments:
        made = layer(states, *call.arguments[1:], **call.named)
    else:
        made = layer(**{**call.named, _STATES: states})
    return made


def _ended(layers: list[nn.Module], each: Pass, states: torch.Tensor) -> torch.Tensor:
    """A pass whose last layer gives these states. Raises _UnlikeError."""
    called = 0

    def give(number: int, call: _Call) -> torch.Tensor:
        nonlocal called
        if number != called:
            raise _UnlikeError  # layers compute more than once
        called += 1
        return states if called == len(layers) else _mark(call.states, called)

    with _in_place_of(layers, give):
        found = each()
    if bool(found.isnan().any()) and not bool(states.isnan().any()):
        raise _UnlikeError  # it takes other layers' states, too
    return found


@contextmanager
def _in_place_of(
    layers: list[nn.Module], own: Callable[[int, _Call], torch.Tensor]
) -> Iterator[None]:
    """Have `own` answer in place of layers; it gets the layer's number."""

    def forward(number: int, *arguments: Any, **named: Any) -> torch.Tensor:
        return own(number, _Call(arguments, named))

    for number, layer in enumerate(layers):
        layer.forward = partial(forward, number)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _mark(states: torch.Tensor, number: int) -> torch.Tensor:
    """States that nobody computes: a number, which additions change, and NaN, which all that is
    made of them has.
    """
    mark = torch.full_like(states, number)
    mark[..., ::2] = torch.nan
    return mark


def _is_mark(states: torch.Tensor, mark: torch.Tensor, number: int) -> bool:
    """True of marked states as they were made, or a view of all of them."""
    same = states.shape == mark.shape and states.data_ptr() == mark.data_ptr()
    return same and bool((states[..., 1::2] == number).all())


def _tensors(arguments: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors with fractions among arguments, and in those that hold some."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            yield argument
        elif isinstance(argument, tuple | list):
            yield from _tensors(argument)
        elif isinstance(argument, dict):
            yield from _tensors([*argument.values()])
