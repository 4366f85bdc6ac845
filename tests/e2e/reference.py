"""transformers' own greedy answers, computed in a process that does nothing else.

`python -m tests.e2e.reference FOLDER COUNT` reads prompts as JSON from its input, token ids or the
question of a chat, and prints for each its tokens, COUNT tokens of answer and, for each of these,
the gap between the two best logits. An end token neither ends an answer nor is masked.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from daemon.engine.worker.torch_stubs import leave_out
from tests.e2e import recorded

MODULE = "tests.e2e.reference"


class Answer(NamedTuple):
    """A greedy answer, and how close each decision was."""

    prompt: list[int]
    tokens: list[int]
    gaps: list[float]


def answers(folder: str, prompts: list[list[int] | str], count: int) -> list[Answer]:
    """The greedy answers to prompts, as recorded (`tests.e2e.recorded`)."""
    return [Answer(*answer) for answer in recorded.answers(MODULE, folder, count, prompts)]


def main(folder: str, count: int) -> None:
    """Compute and print them."""
    leave_out()
    import torch
    from transformers import AutoTokenizer, GenerationConfig

    from tests.engine.loading.gguf_files import unpacked

    model = unpacked(Path(folder) / "model.gguf")
    model.generation_config = GenerationConfig()  # none that the folder has: the plain best token
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for prompt in json.load(sys.stdin):
        if isinstance(prompt, str):
            chat = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(  # noqa: PLW2901
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        made = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=count,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        best = torch.stack(made.logits)[:, 0].topk(2).values
        gaps = (best[:, 0] - best[:, 1]).tolist()
        found.append((prompt, made.sequences[0, len(prompt) :].tolist(), gaps))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
