"""Loads a model folder with transformers' own modelling code and our attention."""

import logging
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from daemon.base.logs import in_a_line
from daemon.engine.layers.attention import ATTENTION_NAME, register
from daemon.engine.layers.ranks import Ranks
from daemon.engine.layers.recurrent.functions import replace_functions
from daemon.engine.loading.experts_below import divide, open_experts
from daemon.engine.loading.resolve import read_config, resolved_of
from daemon.engine.loading.shards import RankShare, shards_of, with_share
from daemon.engine.loading.stages import share_of
from daemon.engine.loading.weights import open_weights
from daemon.engine.quantised.cut import Cut
from daemon.engine.quantised.files import Packed
from daemon.engine.quantised.mapped import PageReader
from daemon.engine.quantised.place import PackedPlaces, check_sizes, claimed, fill, with_layers
from daemon.engine.quantised.stored import tells_together
from daemon.engine.ranks.stages import Stages
from daemon.models.formats import FORMATS
from daemon.models.gguf_index import read_index
from daemon.models.quantisation import read_quantisation
from daemon.models.schemes import Quantisation
from daemon.models.shape import ModelError
from daemon.models.supported import check_folder
from daemon.models.weights import (
    folder_layers,
    predicting_weights,
    weight_headers,
    weight_shapes,
)

log = logging.getLogger(__name__)

_BESIDE = re.compile(
    r"(^|\.)(medusa\w*|eagle\w*|v_head|value_head|reward_head|score|classifier"
    r"|summary|pooler|rotary_emb|vision\w*|visual|audio\w*|multi_modal_projector)(\.|$)"
)
"""Whole parts beside a causal model: they draft further tokens, judge answers or read other input
than text, and change no logits of the model's own."""
_LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
_CPU = torch.device("cpu")
_ADVISING = "transformers.integrations.hub_kernels"
_WHOLE_NUMBERS = frozenset(
    {"BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64))}
)
_SIDES = (1, 2, 3)
"""Numbers of dimensions of a weight; a mask has four, its value none."""


def load_model(
    folder: Path,
    dtype: str,
    device: torch.device,
    tell: Callable[[float], None] = lambda _share: None,
    *,
    weight_dtype: str = "",
    ranks: Ranks | None = None,
    experts_on_cpu: int = 0,
    reader: PageReader | None = None,
) -> PreTrainedModel:
    """The causal language model in `folder`, on its device and ready to compute in `dtype`.

    Weights stored in blocks stay so. On a CPU weights may be narrower than the computation:
    `weight_dtype`, where it is given. `tell` gets, from any thread, the share of the weights that
    is loaded. Of several `ranks` each has its part of the layers, or as a stage some of
    them, and no other's weights. `experts_on_cpu`: layers, of whose experts as many stay in host
    memory. `reader`: reads weights that stay in their files, and may have more to read afterwards.
    Raises ModelError.
    """
    register()
    computes_in = torch_dtype(dtype)
    narrow = torch_dtype(weight_dtype) if weight_dtype not in ("", dtype) else None
    held = narrow, ranks, experts_on_cpu, reader
    model = _loaded(folder, device, computes_in, tell, *held)
    if left_out := predicting_weights(folder):
        said = "predict further tokens and are left out"
        log.info("%s: %d weights %s: %s ...", folder, len(left_out), said, left_out[0])
    model.requires_grad_(False)
    replace_functions(model)
    return model.eval()


def check_weights(folder: Path) -> None:
    """Raise ModelError where `load_model` would: only the files' headers are read."""
    register()
    _loaded(folder, torch.device("meta"), torch.float32, lambda _share: None, None)


def _loaded(
    folder: Path,
    device: torch.device,
    computes_in: torch.dtype,
    tell: Callable[[float], None],
    narrow: torch.dtype | None,
    ranks: Ranks | None = None,
    experts_on_cpu: int = 0,
    reader: PageReader | None = None,
) -> Any:
    """A folder's model, all of whose weights are the folder's. Raises ModelError."""
    config = read_config(folder)
    check_folder(folder, resolved_of(config))
    transformers_logging.disable_progress_bar()  # a daemon's log is read later, line by line
    # It advises to install kernels for recurrent layers, which only a trial's references call.
    transformers_logging.get_logger(_ADVISING).setLevel(logging.ERROR)
    model_class = class_of(config)
    quantisation = read_quantisation(folder, config.to_dict())
    if quantisation is not None and hasattr(config, "quantization_config"):
        del config.quantization_config  # the layers are ours, not those of transformers
    sides = _sides(folder, quantisation)
    model_class, share, cuts = _split(folder, model_class, config, quantisation, sides, ranks)
    has_memory = device.type != "meta"
    tell, tell_below = tells_together(tell)
    place = device if has_memory else _CPU
    opened = open_weights(folder, place, tell, computes_in, narrow, quantisation, cuts, reader)
    with ExitStack() as stack:
        weights, packed = stack.enter_context(opened)
        below, held_as = None, computes_in if narrow is None else narrow
        # A CPU's calls multiply with plain matrices too; a rank's parts are of whole stacks.
        in_calls = device.type == "cpu" and held_as is torch.float32 and share is None
        if experts_on_cpu or in_calls:
            kinds = computes_in, held_as, quantisation
            below = stack.enter_context(open_experts(folder, tell_below, *kinds))
        unused = share.unused if share is not None else frozenset()
        plain = below.plain(packed, device) if below is not None else {}
        given = weights if has_memory else _shells({name: sides[name] for name in weights})
        places, model, report = _made(
            folder, model_class, config, (packed, plain), given, unused, (device, computes_in)
        )
        if has_memory:
            in_ram = set[str]()
            if experts_on_cpu:
                in_ram = divide(folder, model, places, experts_on_cpu)
            fill(model, places, {**plain, **packed}, below.packed if below else {}, in_ram)
            if share is not None:
                share.join(model)
        else:
            check_sizes(model, places, sides)
        # Older quantising tools give every layer a bias, of zeros where the model has none.
        report["unexpected_keys"] -= {
            name
            for name in report["unexpected_keys"] & weights.keys()
            if name.endswith(".bias") and not bool(weights[name][...].any())
        }
    _check_loaded(folder, model, report, weights.keys() - packed.keys() - unused)
    return model


def _made(
    folder: Path,
    model_class: Any,
    config: Any,
    packed: tuple[Packed, Packed],
    given: Mapping[str, Any],
    unused: AbstractSet[str],
    placed: tuple[torch.device, torch.dtype],
) -> tuple[PackedPlaces, Any, Any]:
    """A model of plain weights, but for places of those `packed`; and what transformers reports.
    Experts may take the second of these too, which are plain.

    `given`: all weights, of which the `unused` are left out; `placed`: where, and in which type the
    model computes. Raises ModelError where transformers does not make one.
    """
    try:
        places = claimed(model_class, config, *packed)
        left_out = places.taken | unused
        model, report = with_layers(model_class, places).from_pretrained(
            None,  # its files are not transformers' affair
            config=config,
            state_dict={name: tensor for name, tensor in given.items() if name not in left_out},
            device_map={"": placed[0]},
            dtype=placed[1],
            attn_implementation=ATTENTION_NAME,
            ignore_mismatched_sizes=True,  # they are reported by the caller, in a sentence
            output_loading_info=True,
        )
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        RuntimeError,
        TypeError,
    ) as error:
        said = f"transformers does not make a {config.model_type} of it: {in_a_line(error)}"
        raise ModelError(f"{folder}: {said}") from error
    return places, model, report


def _split(
    folder: Path,
    model_class: Any,
    config: Any,
    quantisation: Quantisation | None,
    sides: Mapping[str, tuple[int, ...]],
    ranks: Ranks | None,
) -> tuple[Any, RankShare | None, Mapping[str, Cut]]:
    """The class of a rank's part of a model, that part, and the cuts of the folder's tensors; the
    whole model where there is one rank. Raises ModelError.
    """
    if ranks is None or ranks.world_size == 1:
        return model_class, None, {}
    resolved = resolved_of(config)
    if isinstance(ranks, Stages):
        stage = share_of(model_class, config, resolved, ranks, sides)
        return with_share(model_class, stage), stage, {}
    block_lens = _block_lens(folder, quantisation)
    shards, cuts = shards_of(model_class, config, resolved, ranks, sides, block_lens)
    return with_share(model_class, shards), shards, cuts


def _sides(folder: Path, quantisation: Quantisation | None) -> dict[str, tuple[int, ...]]:
    """The shape of each of a folder's weights, in blocks or not."""
    layers = folder_layers(folder, quantisation)
    return weight_shapes(folder) | {name: (it.rows, it.columns) for name, it in layers.items()}


def _block_lens(folder: Path, quantisation: Quantisation | None) -> dict[str, int]:
    """The numbers of a block of each weight that is stored in blocks."""
    index, layers = read_index(folder), folder_layers(folder, quantisation)
    formats = {tensor.name: tensor.format for tensor in (index.tensors if index else ())}
    formats |= {name: layer.format for name, layer in layers.items()}
    return {name: FORMATS[form].block_len for name, form in formats.items()}


def _shells(sides: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Tensors without numbers."""
    return {name: torch.empty(shape, device="meta") for name, shape in sides.items()}


def _check_loaded(folder: Path, model: nn.Module, report: Any, plain: AbstractSet[str]) -> None:
    """Raise ModelError unless the model computes with the folder's weights, all of them; `plain`:
    those in no blocks.
    """
    if wrong := sorted(report["mismatched_keys"]):
        name, stored, wanted = wrong[0]
        said = f"{name} is {list(stored)}, and its configuration asks for {list(wanted)}"
        raise ModelError(f"{folder} has weights of another size: {said}")
    if missing := sorted(report["missing_keys"]):  # transformers would make them up
        raise ModelError(f"{folder} lacks {len(missing)} of its weights: {missing[0]} ...")
    unread = sorted(report["unexpected_keys"])
    if lost := [name for name in unread if _belongs(folder, model, name)]:
        said = f"{len(lost)} weights that a {model.config.model_type} of its configuration has not"
        raise ModelError(f"{folder} holds {said}: {lost[0]} ...")
    if unread:
        log.warning("%s: %d weights are of no use here: %s ...", folder, len(unread), unread[0])
    _check_numbers(folder, model, plain - report["unexpected_keys"])


def _check_numbers(folder: Path, model: nn.Module, names: AbstractSet[str]) -> None:
    """Raise ModelError where a weight is stored as whole numbers and nothing says what they mean:
    they would be taken for the weight itself.
    """
    constants = {name for name, _ in model.named_buffers()}
    for name, header in weight_headers(folder).items():
        if header.dtype in _WHOLE_NUMBERS and name in names and name not in constants:
            said = (
                f"{name} is stored as {header.dtype}, and no quantization_config says what it means"
            )
            raise ModelError(f"{folder}: {said}")


def _belongs(folder: Path, model: Any, name: str) -> bool:
    """Whether the model was trained with a tensor that it does not take, and would be computed
    without it: a bias or norm of a layer, or of the model as a whole.

    What is known to lie beside a model does not belong to it, nor do layers behind its last.
    """
    base = f"{model.base_model_prefix}."
    shapes = weight_shapes(folder)
    sides = shapes.get(name, shapes.get(name.removeprefix(base), (1,)))
    if len(sides) not in _SIDES or name.endswith("inv_freq"):
        return False  # a constant that older files hold as if it were a weight
    layer = _LAYER.search(name)
    if layer and int(layer[3]) >= model.config.num_hidden_layers:
        return False
    return not _BESIDE.search(name)


def class_of(config: Any) -> Any:
    """transformers' causal language model for a configuration. Raises ModelError."""
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    trained: Any = MODEL_FOR_PRETRAINING_MAPPING.get(type(config), None)
    if found is None and getattr(trained, "__name__", "").endswith("ForCausalLM"):
        found = trained
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
        raise ModelError(f"transformers has no causal language model of type {config.model_type}")
    model_class: Any = found
    if not model_class._can_set_attn_implementation():
        raise ModelError(f"{found.__name__} does not use transformers' attention interface")
    return found


def torch_dtype(name: str) -> torch.dtype:
    """torch's type for a name such as "float32"."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return dtypes[name]
