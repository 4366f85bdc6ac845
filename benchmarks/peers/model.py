"""Make the model that the comparison runs: seeded weights, and a tokenizer trained on the spot.

    python -m benchmarks.peers.model FOLDER [--shape small|billion]

Speed does not depend on what the weights say, so random ones do: no download, no licence, and
everybody gets the same model from the same seed. They are drawn and written layer by layer, so
that a large model needs no memory of its size. The tokenizer splits text as Llama 3 does, which
every peer has built in.
"""

import argparse
import json
import sysconfig
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

SEED = 1234
CONTEXT = 2048
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
ROLE, CLOSE = "<|im_start|>", "<|im_end|>"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    f"{ROLE}{{{{ message['role'] }}}}\n{{{{ message['content'] }}}}{CLOSE}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ROLE}assistant\n{{% endif %}}"
)


SHAPES: dict[str, dict[str, Any]] = {
    "small": {  # 33.6 million weights
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "initializer_range": 0.05,
    },
    "billion": {  # 1.03 thousand million weights
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 20,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "initializer_range": 0.025,
    },
}


def library_files() -> list[Path]:
    """The modules of the standard library."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def train_tokenizer(vocabulary: int, files: list[Path]) -> Tokenizer:
    """A byte-level BPE of the files' text. Raises ValueError if that is too short."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, ROLE, CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in files], trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(f"the text gives {tokenizer.get_vocab_size()} tokens, not {vocabulary}")
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[begin]
    )
    return tokenizer


def configuration(**shape: Any) -> Any:
    """The configuration of a model of such a shape, as `SHAPES` has some."""
    return LlamaConfig(
        **shape,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )


def write_weights(config: Any, folder: Path) -> None:
    """Draw the weights, the same ones every time, and write them: one file for each layer."""
    loader: Any = AutoModelForCausalLM
    with torch.device("meta"):
        wanted = loader.from_config(config).state_dict()
    by_layer: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, empty in wanted.items():
        parts = name.split(".")
        by_layer[parts[2] if parts[1] == "layers" else "rest"][name] = empty
    random = torch.Generator().manual_seed(SEED)
    weight_map: dict[str, str] = {}
    for number, layer in enumerate(by_layer.values(), 1):
        file = f"model-{number:05}-of-{len(by_layer):05}.safetensors"
        save_file(_draw(config, layer, random), folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(layer, file)
    size_bytes = sum(4 * empty.numel() for empty in wanted.values())
    index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _draw(
    config: Any, layer: dict[str, torch.Tensor], random: torch.Generator
) -> dict[str, torch.Tensor]:
    """Weights as a new model has them: norms multiply by one, the rest is normally distributed."""
    drawn = {}
    for name, empty in layer.items():
        weight = torch.ones(empty.shape)
        if weight.dim() > 1:
            weight.normal_(0.0, config.initializer_range, generator=random)
        drawn[name] = weight
    return drawn


def write_model(config: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model folder with all that belongs into it."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1).save_pretrained(folder)
    write_weights(config, folder)


def main() -> None:
    """Write model and tokenizer to the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Make the model of the comparison.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    args = parser.parse_args()
    config = configuration(**SHAPES[args.shape])
    write_model(config, train_tokenizer(config.vocab_size, library_files()), args.folder)
    print(f"wrote {args.folder}")


if __name__ == "__main__":
    main()
