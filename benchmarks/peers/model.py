"""Make the model that the comparison runs: seeded weights, and a tokenizer trained on the spot.

    python -m benchmarks.peers.model FOLDER

Speed does not depend on what the weights say, so random ones do: no download, no licence, and
everybody gets the same model from the same seed. The tokenizer splits text as Llama 3 does,
which every peer has built in.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1234
VOCABULARY = 8192
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


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of the standard library's text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_paths()["stdlib"])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, ROLE, CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in sorted(library.glob("*.py"))], trainer)
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[begin]
    )
    return tokenizer


def build_model() -> LlamaForCausalLM:
    """A small Llama with random weights, the same ones every time."""
    shape = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(shape).eval()
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    return model


def main() -> None:
    """Write model and tokenizer to the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Make the model of the comparison.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(),
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    build_model().save_pretrained(folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
