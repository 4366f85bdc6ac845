"""The quantised layers of a checkpoint, by the headers of its files: nothing is loaded.

What is stored decides: a layer whose tensors are those of its method is quantised, and all other
tensors are plain. A configuration that says otherwise of a layer is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from daemon.models.formats import FORMATS, FP4_GROUP, group_size
from daemon.models.schemes import Layout, Numbers, Quantisation, Scheme
from daemon.models.shape import ModelError


class TensorHeader(NamedTuple):
    """A tensor's type and shape in a file's header."""

    dtype: str  # as safetensors names it: "I32", "F16", "F8_E4M3"
    shape: tuple[int, ...]


Headers = Mapping[str, TensorHeader]
"""Headers of all tensors of a checkpoint, by their names."""

_MAIN: dict[Layout, str] = {
    "awq": "qweight",
    "gptq": "qweight",
    "packed": "weight_packed",
    "plain": "weight",
    "experts": "_blocks",
}
_PLAIN_DTYPES: dict[Numbers, str] = {"int8": "I8", "fp8": "F8_E4M3", "fp4": "U8"}
_OF_DTYPES = {dtype: numbers for numbers, dtype in _PLAIN_DTYPES.items()}
_FLOATS = ("F16", "BF16", "F32")
_OF_STATES = (
    *(f"{kind}_{what}" for kind in ("input", "output") for what in ("scale", "zero_point")),
    *(f"{kind}_scale" for kind in ("k", "v", "q", "kv", "prob", "activation")),
    *("k_zero_point", "v_zero_point", "input_scale_ub", "input_global_scale"),
)
"""Tensors of scales for states, keys and values, which are not read."""
_ORDER_BYTES = 4


class QuantisedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer whose weight [rows, columns] is quantised, and the tensors that say it."""

    name: str  # "model.layers.0.mlp.up_proj.weight"; an expert's "...mlp.experts.down_proj.7"
    scheme: Scheme
    format: str  # of `daemon.models.formats`: what it is brought into
    rows: int
    columns: int
    group: int  # of its columns share a scale
    tensors: dict[str, str]  # stored names, by role ("qweight")
    place: int = 0  # among the matrices of these tensors, where they hold several

    @property
    def size_bytes(self) -> int:
        """Bytes that the weight takes once it is loaded."""
        order = self.columns * _ORDER_BYTES if self.scheme.act_order else 0
        return self.rows * FORMATS[self.format].row_bytes(self.columns) + order


def find_quantised_layers(
    quantisation: Quantisation, headers: Headers
) -> dict[str, QuantisedLayer]:
    """All quantised layers, by the names of their weights.

    Raises ModelError, a sentence without a folder, for one that is not stored as it should be.
    """
    found = dict[str, QuantisedLayer]()
    for module, layout in _modules(quantisation, headers):
        main = headers.get(f"{module}.weight") if layout == "plain" else None
        scheme = quantisation.scheme_of(module, _OF_DTYPES.get(main.dtype) if main else None)
        if scheme is None:
            raise ModelError(f"{module} is stored quantized, and quantization_config leaves it out")
        if scheme.layout != layout:
            said = f"is stored as {_MAIN[layout]}, and quantization_config says otherwise"
            raise ModelError(f"{module} {said}")
        found |= {layer.name: layer for layer in _layers(module, scheme, headers)}
    if not found:
        raise ModelError(
            f"its quantization_config says {quantisation.method}, and no layer is stored so"
        )
    return found


def tensors_aside(layers: Mapping[str, QuantisedLayer], names: Iterable[str]) -> set[str]:
    """Stored tensors that are no model's own: those of quantised layers, and all scales for states,
    keys and values, which are not read.
    """
    taken = {name for layer in layers.values() for name in layer.tensors.values()}
    scales = {name for name in names if name.rpartition(".")[2] in _OF_STATES}
    return taken | scales if layers else set()


def _modules(quantisation: Quantisation, headers: Headers) -> Iterator[tuple[str, Layout]]:
    """Every module that is stored quantised, and how."""
    layouts = {_MAIN[target.scheme.layout]: target.scheme.layout for target in quantisation.targets}
    for name, header in headers.items():
        if name.endswith(_MAIN["experts"]):
            if "experts" in layouts.values():
                yield name.removesuffix(_MAIN["experts"]), "experts"
            continue
        module, _, last = name.rpartition(".")
        if last != "weight" or header.dtype in ("I8", "U8", "F8_E4M3", "F8_E5M2"):
            for layout, main in _MAIN.items():
                if last == main and layouts.get(main, layout) == layout:
                    yield module, layout


def _layers(module: str, scheme: Scheme, headers: Headers) -> list[QuantisedLayer]:
    """The layers whose weights a module's tensors hold: one, or one for each expert."""
    if scheme.layout == "experts":
        return _experts(module, scheme, headers)
    return [_layer(module, scheme, headers)]


def _experts(module: str, scheme: Scheme, headers: Headers) -> list[QuantisedLayer]:
    parts = _Parts(module, headers, "_")
    sides = parts.sides("blocks", "U8")
    form = FORMATS["MXFP4"]
    if len(sides) != 4 or min(sides) < 1 or sides[3] != form.block_len // 2:
        said = f"not [experts, rows, blocks, {form.block_len // 2}]"
        raise ModelError(f"{module}_blocks has the shape {list(sides)}, {said}")
    parts.expect("scales", [sides[:3]], "U8")
    return [
        QuantisedLayer(
            name=f"{module}.{expert}",
            scheme=scheme,
            format=form.name,
            rows=sides[1],
            columns=sides[2] * form.block_len,
            group=form.block_len,
            tensors=parts.taken,
            place=expert,
        )
        for expert in range(sides[0])
    ]


def _layer(module: str, scheme: Scheme, headers: Headers) -> QuantisedLayer:
    parts = _Parts(module, headers, ".")
    rows, columns = _LAYOUTS[scheme.layout](parts, scheme)
    group = min(scheme.group or columns, columns)
    try:
        # Blocks of NVFP4 have several groups.
        block_len = group_size(columns, columns if scheme.numbers == "fp4" else group)
    except ValueError as error:
        raise ModelError(f"{module}: {error}") from None
    form = f"{scheme.numbers}/{block_len}"
    return QuantisedLayer(
        name=f"{module}.weight",
        scheme=scheme,
        format=form,
        rows=rows,
        columns=columns,
        group=group,
        tensors=parts.taken,
    )


class _Parts:
    """A module's tensors; those that were asked for are taken."""

    def __init__(self, module: str, headers: Headers, joint: str) -> None:
        """`joint` stands between the module's name and those of its tensors."""
        self._begin = f"{module}{joint}"
        self._headers = headers
        self.taken: dict[str, str] = {}

    def dtype(self, what: str) -> str:
        """The type of a tensor; empty where it is not there."""
        header = self._headers.get(f"{self._begin}{what}")
        return header.dtype if header else ""

    def sides(self, what: str, *dtypes: str) -> tuple[int, ...]:
        """The shape of a tensor that must be there, in one of these types."""
        name = f"{self._begin}{what}"
        header = self._headers.get(name)
        if header is None:
            raise ModelError(f"{name} is missing, which the quantized layer needs")
        if header.dtype not in dtypes:
            raise ModelError(f"{name} is stored as {header.dtype}, not as {' or '.join(dtypes)}")
        self.taken[what] = name
        return header.shape

    def matrix(self, what: str, *dtypes: str) -> tuple[int, int]:
        """The shape of a tensor that has two sides and is not empty."""
        sides = self.sides(what, *dtypes)
        if len(sides) != 2 or min(sides) < 1:
            raise ModelError(f"{self._begin}{what} has the shape {list(sides)}, not of two sides")
        return sides[0], sides[1]

    def expect(self, what: str, shapes: Iterable[tuple[int, ...]], *dtypes: str) -> None:
        """Take a tensor of one of some shapes."""
        sides, wanted = self.sides(what, *dtypes), list(shapes)
        if sides not in wanted:
            raise ModelError(
                f"{self._begin}{what} has the shape {list(sides)}, and "
                f"quantization_config makes it {list(wanted[0])}"
            )


def _groups(scheme: Scheme, columns: int) -> int:
    return -(-columns // scheme.group) if scheme.group else 1


def _awq(parts: _Parts, scheme: Scheme) -> tuple[int, int]:
    columns, words = parts.matrix("qweight", "I32")
    groups = _groups(scheme, columns)
    parts.expect("qzeros", [(groups, words)], "I32")
    parts.expect("scales", [(groups, words * 8)], *_FLOATS)
    return words * 8, columns


def _gptq(parts: _Parts, scheme: Scheme) -> tuple[int, int]:
    words, rows = parts.matrix("qweight", "I32")
    in_word = 8 if scheme.numbers == "int4" else 4
    columns = words * in_word
    groups = _groups(scheme, columns)
    parts.expect("qzeros", [(groups, -(-rows // in_word))], "I32")
    parts.expect("scales", [(groups, rows)], *_FLOATS)
    _order(parts, "g_idx", scheme, columns)
    return rows, columns


def _packed(parts: _Parts, scheme: Scheme) -> tuple[int, int]:
    if scheme.numbers == "fp4":
        return _fp4(parts, "weight_packed", "weight_global_scale")
    rows, words = parts.matrix("weight_packed", "I32")
    in_word = 8 if scheme.numbers == "int4" else 4
    columns = words * in_word
    parts.expect("weight_shape", [(2,)], "I64", "I32")
    grids = _grids(scheme, rows, columns)
    parts.expect("weight_scale", grids, *_FLOATS)
    if parts.dtype("weight_zero_point") == "I32":
        parts.expect("weight_zero_point", [(-(-rows // in_word), grids[0][1])], "I32")
    else:
        _zero_points(parts, scheme, grids)
    _order(parts, "weight_g_idx", scheme, columns)
    return rows, columns


def _order(parts: _Parts, name: str, scheme: Scheme, columns: int) -> None:
    """Check the groups of columns, which must be there where columns are in another order."""
    if parts.dtype(name) or (scheme.act_order and _groups(scheme, columns) > 1):
        parts.expect(name, [(columns,)], "I32", "I64")


def _fp4(parts: _Parts, name: str, whole: str) -> tuple[int, int]:
    """NVFP4: pairs of numbers, a scale for each 16, and one for the tensor, called `whole`."""
    rows, pairs = parts.matrix(name, "U8")
    parts.expect("weight_scale", [(rows, 2 * pairs // FP4_GROUP)], "F8_E4M3")
    parts.expect(whole, [(), (1,)], "F32")
    return rows, 2 * pairs


def _plain(parts: _Parts, scheme: Scheme) -> tuple[int, int]:
    if scheme.numbers == "fp4":
        return _fp4(parts, "weight", "weight_scale_2")
    rows, columns = parts.matrix("weight", _PLAIN_DTYPES[scheme.numbers])
    grids = _grids(scheme, rows, columns)
    name = "weight_scale_inv" if parts.dtype("weight_scale_inv") else "weight_scale"
    parts.expect(name, grids, *_FLOATS)
    _zero_points(parts, scheme, grids)
    return rows, columns


def _zero_points(parts: _Parts, scheme: Scheme, grids: list[tuple[int, ...]]) -> None:
    """Check zero points; those of symmetric numbers are zero, where they are stored at all."""
    if not scheme.symmetric or parts.dtype("weight_zero_point"):
        dtypes = ("F8_E4M3", "I8", *_FLOATS) if scheme.numbers == "fp8" else ("I8",)
        parts.expect("weight_zero_point", grids, *dtypes)


def _grids(scheme: Scheme, rows: int, columns: int) -> list[tuple[int, ...]]:
    """Shapes that scales may have, the first as [of rows, of columns].

    Where all of a weight shares one, each row may also have its own: FP8's configurations do not
    tell these apart.
    """
    if not scheme.group_rows:
        return [(1, 1), (1,), (), (rows, 1), (rows,)]
    down, across = -(-rows // scheme.group_rows), _groups(scheme, columns)
    return [(down, across), (down,)] if across == 1 else [(down, across)]


_LAYOUTS = {"awq": _awq, "gptq": _gptq, "packed": _packed, "plain": _plain}
