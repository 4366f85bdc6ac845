"""Makes a model folder with weights in blocks.

`python -m daemon.engine.loading.requantise KIND SRC DST` is how it is called.

Without DST it prints what it would make: the index of the file of blocks. Rows are read, rounded
and written a strip at a time, so that memory does not grow with the model. The share that is done
is printed, a number per line.
"""

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import nn

from daemon.config.paths import default_cache
from daemon.engine.loading.loader import class_of
from daemon.engine.loading.resolve import read_config
from daemon.engine.process import keep_compiled, stay_offline
from daemon.engine.quantised.experts import layout_of
from daemon.engine.quantised.nearest import nearest_blocks
from daemon.engine.quantised.parts import stored_parts
from daemon.engine.quantised.place import claimed, outline
from daemon.engine.quantised.stored import LoadMeter, Stored, bytes_of, read_rows, stored_tensors
from daemon.memory.sizing import WEIGHT_KINDS
from daemon.models.containers import text_names
from daemon.models.formats import FORMATS, GROUP_SIZES, PLAIN, WeightFormat
from daemon.models.gguf_index import OWN_FILE, OWN_INDEX, GgufIndex, IndexedTensor
from daemon.models.quantise_plan import VALUES, is_quantised, planned_index
from daemon.models.quantised_folder import beside_weights
from daemon.models.quantised_layers import TensorHeader
from daemon.models.rank_shares import Range
from daemon.models.shape import ModelError
from daemon.models.weights import weight_files, weight_headers
from daemon.wire.parent import die_with_parent

_STRIP_ELEMENTS = 1 << 22
"""Elements of a tensor that are in memory at a time, in float32."""


def plan(source: Path, kind: str) -> GgufIndex:
    """Plan how a folder's weights are quantised. Raises ModelError where none becomes blocks."""
    config = read_config(source)
    model_class = class_of(config)
    model = outline(model_class, config)
    headers = weight_headers(source)
    stacks = _stacks(model, headers)
    headers = {name: it for whole in headers for name, it in _each(whole, headers, stacks)}
    places = claimed(model_class, config, headers)
    modules = dict(model.named_modules())
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    wide = {
        weight
        for name, (weight,) in places.layers.items()
        if modules[name] in ends or name.endswith(VALUES)
    }
    linear = {
        weight for name, (weight,) in places.layers.items() if type(modules[name]) is nn.Linear
    }
    linear |= {weight for weights in places.of_experts.values() for weight in weights}
    index = planned_index(headers, linear, wide, kind)
    if not any(is_quantised(tensor) for tensor in index.tensors):
        raise ModelError(
            f"{source}: none of its weights is a linear layer's of whole groups of 32 numbers a "
            "row, so that model.quantize has nothing to do"
        )
    return index


def requantise(source: Path, target: Path, kind: str, tell: Callable[[float], None]) -> None:
    """Write the folder `target`. Raises ModelError and OSError."""
    index = plan(source, kind)
    _check_room(target.parent, index.size_bytes, source, kind)
    target.mkdir(parents=True, exist_ok=True)
    for path in beside_weights(source):
        shutil.copyfile(path, target / path.name)
    with ExitStack() as stack:
        stored: dict[str, Stored] = {}
        name_of = text_names(source)
        for path in weight_files(source):
            file = os.open(path, os.O_RDONLY)
            stack.callback(os.close, file)
            stored |= stored_tensors(path, file, name_of)
        config = read_config(source)
        stacks = _stacks(outline(class_of(config), config), weight_headers(source))
        for name in stacks:
            stored |= _experts_of(name, stored.pop(name))
        meter = LoadMeter(sum(tensor.size_bytes for tensor in stored.values()), tell)
        _write_others(target, index, stored, meter)
        with (target / OWN_FILE).open("wb") as blocks:
            for tensor in index.tensors:
                blocks.seek(tensor.start)
                turned = stacks.get(tensor.name.rpartition(".")[0], False)
                for part in _parts(tensor, stored[tensor.name], meter, turned):
                    blocks.write(part)
            blocks.truncate(index.size_bytes)
            blocks.flush()
            os.fsync(blocks.fileno())
    (target / OWN_INDEX).write_bytes(msgspec.json.encode(index))
    tell(1.0)


def _stacks(model: Any, headers: Mapping[str, TensorHeader]) -> dict[str, bool]:
    """A folder's tensors of all experts of a layer, where each expert's rows are of whole groups,
    and whether an expert's columns are stored as rows.
    """
    found, shapes = dict[str, bool](), model.state_dict()
    for name, header in headers.items():
        if len(header.shape) != 3 or header.dtype not in PLAIN:
            continue
        (target,) = stored_parts(model, {f"{name}.0"})
        owner = target.rpartition(".")[0]
        experts: Any = model.get_submodule(owner) if target in shapes else None
        layout = None if experts is None else layout_of(experts)
        if layout is None or header.shape != shapes[target].shape:
            continue
        if header.shape[1 if layout.transposed else 2] % GROUP_SIZES[-1] == 0:
            found[name] = layout.transposed
    return found


def _each(
    name: str, headers: Mapping[str, TensorHeader], stacks: Mapping[str, bool]
) -> Iterator[tuple[str, TensorHeader]]:
    """A tensor of a folder, or those of each expert that it has, with rows of their products."""
    header = headers[name]
    if name not in stacks:
        yield name, header
        return
    count, *sides = header.shape
    each = header._replace(shape=tuple(sides[::-1] if stacks[name] else sides))
    yield from ((f"{name}.{expert}", each) for expert in range(count))


def _experts_of(name: str, stack: Stored) -> dict[str, Stored]:
    """The places of each expert in a tensor of all."""
    count, *sides = stack.shape
    size_bytes = stack.size_bytes // count
    each = stack._replace(size_bytes=size_bytes, shape=tuple(sides))
    return {
        f"{name}.{expert}": each._replace(start=stack.start + expert * size_bytes)
        for expert in range(count)
    }


def _check_room(folder: Path, size_bytes: int, source: Path, kind: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        raise ModelError(
            f"{source} takes {size_bytes / 2**30:,.2f} GiB as {kind}, and {folder} has "
            f"{free_bytes / 2**30:,.2f} GiB free: daemon.cache may name another folder"
        )


def _parts(
    tensor: IndexedTensor, stored: Stored, meter: LoadMeter, turned: bool
) -> Iterator[memoryview]:
    """The bytes of a tensor of the new file, a strip after the other; `turned`: its columns are
    stored as rows, so that it is read as a whole.
    """
    form = FORMATS[tensor.format]
    columns = tensor.shape[-1]
    height = max(_STRIP_ELEMENTS // columns, 1)
    num_rows = math.prod(tensor.shape[:-1])
    if turned:
        for strip in read_rows(stored, meter).T.contiguous().split(height):
            yield bytes_of(_nearest(tensor.name, form, strip))
        return
    flat = stored._replace(shape=(num_rows, columns))
    for first in range(0, num_rows, height):
        strip = read_rows(flat, meter, Range(first, min(first + height, num_rows)))
        yield bytes_of(_nearest(tensor.name, form, strip) if is_quantised(tensor) else strip)


def _nearest(name: str, form: WeightFormat, rows: torch.Tensor) -> torch.Tensor:
    wide = rows.float()
    if not bool(wide.isfinite().all()):
        raise ModelError(f"{name} holds numbers that are not finite: it cannot be quantised")
    return nearest_blocks(form, wide)


def _write_others(
    target: Path, index: GgufIndex, stored: Mapping[str, Stored], meter: LoadMeter
) -> None:
    """Write the tensors that a file of blocks cannot hold to a safetensors file, as they are."""
    held = {tensor.name for tensor in index.tensors}
    others = {name: read_rows(stored[name], meter) for name in stored.keys() - held}
    if others:
        save_file(others, target / "model.safetensors", {"format": "pt"})


def main() -> int:
    """Do what the command line says; 0 when the folder is complete."""
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in WEIGHT_KINDS:
        kinds = "|".join(WEIGHT_KINDS)
        print(
            f"usage: python -m daemon.engine.loading.requantise {kinds} SRC [DST]", file=sys.stderr
        )
        return 2
    die_with_parent()
    stay_offline()
    keep_compiled(default_cache())
    kind, source, *target = sys.argv[1], *map(Path, sys.argv[2:])
    try:
        if target:
            requantise(source, target[0], kind, lambda share: print(f"{share:.4f}", flush=True))
        else:
            sys.stdout.buffer.write(msgspec.json.encode(plan(source, kind)))
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
