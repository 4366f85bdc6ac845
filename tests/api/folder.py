"""A tiny model folder: a real byte-level tokenizer, trained here, and a chat template."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 0, 1
TEXT = [
    "The quick brown fox jumps over the lazy dog. Hello world, hello there, hello again.",
    "A block of tokens is sealed when it is full; the next block begins with the next token.",
    "user assistant system one two three four five six seven eight nine ten",
]
TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def tokenizer() -> Tokenizer:
    """The same one each time."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    return made


def build(folder: Path, with_template: bool = True) -> Path:
    """Write the folder's files; gives it back."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}
    if with_template:
        config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
