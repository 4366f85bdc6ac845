"""Makes a model folder of a GGUF file: `python -m daemon.engine.loading.convert SRC DST`.

The folder then holds all that serving needs beside the file itself, without gguf or transformers'
slow conversions: config.json, generation_config.json, tokenizer.json, tokenizer_config.json, and
the index of the file's tensors. The share that is done is printed, a number per line.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from daemon.engine.loading.gguf_speed import hurry
from daemon.engine.process import stay_offline
from daemon.models.formats import PLAIN
from daemon.models.gguf_header import GgufHeader, read_gguf_header
from daemon.models.gguf_index import INDEX, LINK, GgufIndex, link
from daemon.models.shape import ModelError
from daemon.wire.parent import die_with_parent

_RECOMMENDED = {
    # What the authors of SmolLM2-Instruct say on its page; the GGUF file has no field for it. The
    # penalty is ours: without it one answer in four repeats itself until its tokens are spent.
    "Smollm2 135M 8k Lc100K Mix1 Ep2": {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    },
}
"""Default sampling for generation_config.json, by the name that a GGUF file gives its model."""

_PARTS = 5
"""Parts of the work, of about the same length, for the progress bar alone."""

Tell = Callable[[float], None]
"""A callback that gets the share of the conversion that is done, 0..1."""


_WIDTHS = {
    ".ffn_gate_exps.weight": "moe_intermediate_size",
    "per_layer_token_embd.weight": "vocab_size_per_layer_input",
    ".ffn_gate_shexp.weight": "shared_expert_intermediate_size",
}
"""Configuration fields for the rows of tensors, by the ends of the tensors' names."""
_SHOWN = {
    "attention_bias": re.compile(r"blk\.\d+\.attn_(q|k|v|output)\.bias"),
    "attention_out_bias": re.compile(r"blk\.\d+\.attn_output\.bias"),
    "use_bias": re.compile(r"blk\.\d+\.(attn|ffn)_\w+\.bias"),
    "use_qk_norm": re.compile(r"blk\.\d+\.attn_q_norm\.weight"),
    "mamba_conv_bias": re.compile(r"blk\.\d+\.ssm_conv1d\.bias"),
    "mlp_bias": re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.bias"),
}
"""Tensors that exist only where a configuration's field is set, by that field."""


def put_tensors(config: Any, tensors: Any, said: Collection[str] = ()) -> None:
    """Put what a file's tensors say into its configuration, but for the fields that are `said`."""
    for tensor in tensors:
        for end, field in _WIDTHS.items():
            if tensor.name.endswith(end) and hasattr(config, field):
                setattr(config, field, int(tensor.shape[1]))
    for field, name in _SHOWN.items():
        if hasattr(config, field) and field not in said:
            setattr(config, field, any(name.fullmatch(tensor.name) for tensor in tensors))


def convert(source: Path, target: Path, tell: Tell = lambda share: None) -> None:
    """Write the folder `target` from the GGUF file `source`. Raises ModelError."""
    tell(0.0)
    header = read_gguf_header(source)

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GenerationConfig

    from daemon.base.logs import in_a_line
    from daemon.engine.loading.gguf_blocks import Indexer
    from daemon.engine.loading.gguf_fields import recommended
    from daemon.engine.loading.gguf_tokenizer import write_tokenizer
    from daemon.engine.loading.second_reading import compare

    tell(1 / _PARTS)
    config = _configuration(source, header)
    if any(tensor.name == "output.weight" for tensor in header.tensors):
        config.tie_word_embeddings = False  # transformers looks into the first part of a split file
    config.pad_token_id = None  # a default of the type's, and no row of the embedding here
    tell(2 / _PARTS)
    unused = _put_all(source, config, header)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a model's own code raises
        said = f"transformers makes no model of it: {in_a_line(error)}"
        raise ModelError(f"{source}: {said}") from error
    tell(3 / _PARTS)
    indexer = Indexer(source, header, model)
    index, computed = indexer.index()
    index = msgspec.structs.replace(index, unused=unused)
    tell(4 / _PARTS)
    target.mkdir(parents=True, exist_ok=True)
    (target / INDEX).write_bytes(msgspec.json.encode(index))
    link(target, source)
    compare(source, target, index, config, header.architecture, indexer.tensors)
    if computed:
        save_file(computed, target / "model.safetensors", {"format": "pt"})
    config.architectures = [type(model).__name__]
    config.dtype = _computes_in(index)
    config.save_pretrained(target)
    try:
        vocabulary = write_tokenizer(source, target, header)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    generation = GenerationConfig.from_model_config(config)
    ends = vocabulary.ends
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    generation.save_pretrained(target)
    sampling = _RECOMMENDED.get(str(header.fields.get("general.name", "")), {})
    _recommend(target / "generation_config.json", {**sampling, **recommended(header)})
    _make_readable(target)
    tell(1.0)


def _configuration(source: Path, header: GgufHeader) -> Any:
    """The configuration that transformers reads from a file's fields. Raises ModelError."""
    from transformers import AutoConfig

    from daemon.base.logs import in_a_line
    from daemon.engine.loading.gguf_architectures import architecture_of
    from daemon.engine.loading.gguf_fields import check_fields, layer_fields

    try:
        check_fields(header)
        layer_fields(header)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    try:
        if own := architecture_of(header):
            settings = {**_sizes(header), **own.settings, **layer_fields(header).settings}
            return AutoConfig.for_model(own.model_type, **settings)
        return AutoConfig.from_pretrained(str(source.parent), gguf_file=source.name)
    except Exception as error:  # whatever a configuration's own checks raise
        said = f"transformers makes no configuration of it: {in_a_line(error)}"
        raise ModelError(f"{source}: {said}") from error


def _sizes(header: GgufHeader) -> dict[str, Any]:
    """The fields on which other values of a configuration depend, and no token of its defaults."""
    from daemon.engine.loading.gguf_fields import num_layers

    said, begin = header.fields, f"{header.architecture}."
    num_tokens = len(said.get("tokenizer.ggml.tokens", ()))
    return {
        "num_hidden_layers": num_layers(header),
        "vocab_size": said.get(f"{begin}vocab_size", num_tokens),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in header.tensors),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }


def _put_all(source: Path, config: Any, header: GgufHeader) -> tuple[str, ...]:
    """Have a configuration say all that a file says; the fields that are of no use here.

    Raises ModelError.
    """
    from daemon.engine.loading.convert import put_tensors
    from daemon.engine.loading.gguf_blocks import tensors_of
    from daemon.engine.loading.gguf_fields import layer_fields, put_fields
    from daemon.engine.loading.gguf_rope import scaled_rope
    from daemon.engine.loading.resolve import refuse_configuration

    tensors = tensors_of(header, source)
    put_tensors(config, tensors, layer_fields(header).settings)
    try:
        unused = put_fields(config, header)
        scaled_rope(config, tensors)
    except ModelError as error:
        refuse_configuration(source, config)  # what is no field's fault
        raise ModelError(f"{source}: {error}") from None
    refuse_configuration(source, config)
    return unused


def _computes_in(index: GgufIndex) -> str:
    """The dtype that a GPU computes in: that of most weights, bfloat16 for packed ones."""
    sizes: dict[str, int] = {}
    for tensor in index.tensors:
        kind = PLAIN.get(tensor.format, "bfloat16")
        sizes[kind] = sizes.get(kind, 0) + tensor.size_bytes
    return max(sizes, key=lambda kind: sizes[kind], default="float32")


def _recommend(path: Path, sampling: dict[str, Any]) -> None:
    """Put default sampling into a generation_config.json, where there is some."""
    if sampling:
        config = json.loads(path.read_text()) | sampling
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _make_readable(folder: Path) -> None:
    """Let other users of the machine read the result, whatever modes the writers chose."""
    for path in folder.iterdir():
        if path.name != LINK:
            path.chmod(0o644)


def main() -> int:
    """Convert the file that the command line names; 0 when the folder is complete."""
    if len(sys.argv) != 3:
        print("usage: python -m daemon.engine.loading.convert SRC.gguf DST_FOLDER", file=sys.stderr)
        return 2
    die_with_parent()
    stay_offline()
    os.environ["TQDM_DISABLE"] = "1"
    hurry()
    source, target = (Path(word).absolute() for word in sys.argv[1:])
    try:
        convert(source, target, lambda share: print(f"{share:.4f}", flush=True))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
