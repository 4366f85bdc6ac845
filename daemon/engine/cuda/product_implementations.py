"""Implementations of a matrix product on a GPU; measurement chooses among them."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

from daemon.engine.cuda.triton.skinny import Scratch, Strip, Tile, strip_product, tiled_product


class Implementation(Protocol):
    """Computes states [T, in_features] times weight [out_features, in_features]^T, plus bias.

    The weight is a tensor, or a `QuantisedWeight` whose columns are in the states' order.
    """

    @property
    def name(self) -> str:
        """Its name in the log."""

    def __call__(
        self, states: torch.Tensor, weight: Any, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The product, [T, out_features]."""


@dataclass(frozen=True, slots=True)
class Library:
    """cuBLAS, as torch calls it; takes any number of rows."""

    name: str = "cublas"

    def __call__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Implementation`."""
        return linear(states, weight, bias)


@dataclass(frozen=True, slots=True)
class LightLibrary:
    """cuBLASLt: other heuristics over much the same kernels; takes any number of rows."""

    name: str = "cublaslt"

    def __call__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Implementation`."""
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            return linear(states, weight, bias)
        finally:
            torch.backends.cuda.preferred_blas_library(before)


@dataclass(frozen=True, slots=True)
class Vector:
    """cuBLAS with the weight on the left, for a single row: it picks other kernels then."""

    name: str = "cublas mv"

    def __call__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Implementation`."""
        state = states.view(-1)
        product = torch.mv(weight, state) if bias is None else torch.addmv(bias, weight, state)
        return product.view(1, -1)


@dataclass(frozen=True, slots=True)
class Strips:
    """Our kernel without tensor cores, for at most `strip.rows` rows."""

    strip: Strip

    @property
    def name(self) -> str:
        """Its name in the log: outputs of a program, warps."""
        return f"strip {self.strip.outputs} w{self.strip.warps}"

    def __call__(
        self,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        compile_only: bool = False,
    ) -> torch.Tensor:
        """See `Implementation`; `compile_only`: make the kernel of the call, compute nothing."""
        out = _output(states, weight)
        return strip_product(states, weight, bias, out, self.strip, compile_only)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Our kernel with tensor cores, for as many rows as `scratch` has room for."""

    tile: Tile
    splits: int
    scratch: Scratch

    @property
    def name(self) -> str:
        """Its name in the log: outputs x rows x depth of a tile, splits, warps, stages."""
        tile = self.tile
        shape = f"{tile.outputs}x{tile.rows}x{tile.depth}"
        return f"tile {shape} /{self.splits} w{tile.warps} s{tile.stages}"

    def __call__(
        self,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        compile_only: bool = False,
    ) -> torch.Tensor:
        """See `Implementation`; `compile_only`: make the kernel of the call, compute nothing."""
        out, parts = _output(states, weight), (self.tile, self.splits, self.scratch)
        return tiled_product(states, weight, bias, out, *parts, compile_only)


def _output(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return states.new_empty((len(states), len(weight)))
