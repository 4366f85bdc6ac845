"""A loaded model against its files, read a second time by safetensors itself: a row of each weight.

A trial compares ways to compute with the weights that were loaded, so that a weight which was read
or sent wrongly would be wrong on both sides. Weights that were renamed, joined or unpacked on the
way are not compared here: transformers and the formats' own tests answer for them.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from daemon.engine.layers.recurrent.functions import DirectLinear
from daemon.engine.loading.resolve import read_config
from daemon.engine.quantised.linear import quantised_layers
from daemon.models.formats import PLAIN
from daemon.models.gguf_index import read_index
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import ModelError
from daemon.models.weights import folder_layers, weight_files


def check_reading(model: Any, folder: Path) -> int:
    """How many weights of a loaded model were compared with their file's rows.

    Raises ModelError, naming the weight, where one is another, or no number.
    """
    if read_index(folder) is not None:
        return 0  # it was read twice when it was made
    held = dict(model.state_dict())
    layers = {f"{name}.weight": layer.weights for name, layer in quantised_layers(model)}
    direct = [pair for pair in model.named_modules() if isinstance(pair[1], DirectLinear)]
    rounded = {f"{name}.weight": layer.held_as for name, layer in direct}
    packed = folder_layers(folder, read_quantisation(folder, read_config(folder).to_dict()))
    count = 0
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                stored = file.get_slice(name)
                shape = tuple(stored.get_shape())
                row = None if name in packed else _row(name, shape, held, layers)
                if row is None or not shape or 0 in shape:
                    continue
                own = stored[shape[0] // 2].to(rounded.get(name, row.dtype))
                own = own.to(row.dtype).to(torch.float32)
                if bool(own.isnan().any()):
                    raise ModelError(f"{path}: {name} has values that are no numbers (NaN)")
                if not torch.equal(row.to("cpu", torch.float32).view(own.shape), own):
                    said = f"{name} was not loaded as the file has it"
                    raise ModelError(f"{path}: {said}, read a second time")
                count += 1
    return count


def _row(
    name: str, shape: tuple[int, ...], held: dict[str, torch.Tensor], layers: dict[str, Any]
) -> torch.Tensor | None:
    """The middle row of a weight; None where no weight of the model has its name and size."""
    if name in held and tuple(held[name].shape) == shape and shape:
        return held[name][shape[0] // 2]
    weights = layers.get(name, ())
    if len(weights) == 1 and weights[0].shape == shape and weights[0].format.name in PLAIN:
        middle = shape[0] // 2
        numbers: torch.Tensor = weights[0].pick(slice(middle, middle + 1)).numbers()
        return numbers[0].to(getattr(torch, PLAIN[weights[0].format.name]))
    return None
