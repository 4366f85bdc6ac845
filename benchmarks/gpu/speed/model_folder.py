"""A model folder of random weights, as if it had been downloaded; no text of it means anything."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig

from benchmarks.gpu.speed.engines import forget, random_model

SHARD_BYTES = 1 << 30
WRITERS = 4
SPARE = 1.5  # times what is written, so that the machine does not run out of room
ENDS = ("<|begin|>", "<|end|>")
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


class NoRoomError(Exception):
    """No folder has room for the model."""


@contextmanager
def model_folder(config: LlamaConfig, device: str) -> Iterator[Path]:
    """Write the model, give its folder, and remove it again. Raises NoRoomError."""
    model = random_model(config, device, "sdpa")
    tensors = dict(model.state_dict())
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    with tempfile.TemporaryDirectory(prefix="gpu-bench-model-", dir=_roomy(size_bytes)) as name:
        folder = Path(name)
        model.config.save_pretrained(folder)
        _write_weights(folder, tensors)
        tokenizer(config.vocab_size).save(str(folder / "tokenizer.json"))
        del model, tensors
        forget(device)
        yield folder


def tokenizer(size: int) -> Tokenizer:
    """A byte-level vocabulary of `size` tokens: two ends, all bytes, and made-up words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*ENDS, *letters, *(_word(number) for number in range(size - len(letters) - 2))]
    made = Tokenizer(models.BPE(vocab={word: token for token, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(ENDS))
    return made


def _word(number: int) -> str:
    """Three syllables, with the space before them."""
    text = ""
    for _ in range(3):
        number, vowel = divmod(number, len(VOWELS))
        number, consonant = divmod(number, len(CONSONANTS))
        text += CONSONANTS[consonant] + VOWELS[vowel]
    return f"\u0120{text}"


def _write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Shards with their index, several at a time."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(one.nbytes for one in shards[-1].values()) + tensor.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensor
    shards = [shard for shard in shards if shard]
    names = [
        f"model-{index + 1:05}-of-{len(shards):05}.safetensors" for index in range(len(shards))
    ]

    def write(index: int) -> None:
        held = {name: tensor.cpu().contiguous() for name, tensor in shards[index].items()}
        save_file(held, folder / names[index], metadata={"format": "pt"})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(len(shards))))
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: names[i] for i, shard in enumerate(shards) for name in shard},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _roomy(size_bytes: int) -> str:
    """The first folder with room: in memory, as a warm disk cache would be, else on disk."""
    places = ["/dev/shm", tempfile.gettempdir()]
    for place in places:
        if Path(place).is_dir() and shutil.disk_usage(place).free > SPARE * size_bytes:
            return place
    raise NoRoomError(f"{size_bytes / 1e9:.0f} GB of weights fit neither of {', '.join(places)}")
