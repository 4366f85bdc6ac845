"""What products that round states cost in perplexity on a CPU: `python -m benchmarks.perplexity`.

Some thousand tokens of llmd's own documents are prompts whose tokens' log-probabilities are asked
for. Each way of holding the embedded model's weights is scored twice: with the products that are
fastest here and may round what they multiply (as a daemon does by default), and with those that
round nothing (`--dtype float32`). The ratio of the two perplexities is what rounding costs.

as it is     the embedded GGUF file's own blocks (Q4_1 and others)
bfloat16     the same numbers in two bytes
int8 ...     these in blocks, as `model.quantize` makes them; `of bfloat16` compares the perplexity
             with that of bfloat16 with nothing rounded: what the rounding of weights costs

Which products are chosen depends on the tokens of a step, so that prompts are taken in steps of
several sizes: eight sequences at a time, a token or more of each.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from daemon.config.paths import default_cache
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import requantise
from daemon.engine.process import keep_compiled
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.worker.start import start
from daemon.memory.sizing import WEIGHT_KINDS
from daemon.models.embedded import model_folder
from daemon.models.quantised_folder import beside_weights
from daemon.protocol.worker import Load
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver

BLOCK_SIZE, BATCH = 16, 8
SCORING = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=0)
DOCUMENTS = ("operations", "scheduling", "gpu", "instances", "simulator")
DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Print a line for each way of holding weights and size of steps."""
    parser = argparse.ArgumentParser(prog="perplexity", description=__doc__)
    parser.add_argument("--tokens", type=int, default=512, help="of each of eight prompts")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 8, 64], help="tokens of each")
    parser.add_argument("--kinds", nargs="*", choices=WEIGHT_KINDS, default=WEIGHT_KINDS)
    arguments = parser.parse_args()
    embedded = model_folder("", default_cache())
    prompts = _prompts(embedded, arguments.tokens)
    with tempfile.TemporaryDirectory() as name:
        folders = {"as it is": embedded, "bfloat16": _plain(embedded, Path(name) / "bfloat16")}
        for kind in arguments.kinds:
            folders[kind] = Path(name) / kind
            requantise(folders["bfloat16"], folders[kind], kind, lambda _share: None)
        plain: dict[int, float] = {}
        for way, folder in folders.items():
            exact = _perplexities(folder, prompts, arguments.steps, exact=True)
            fastest = _perplexities(folder, prompts, arguments.steps, exact=False)
            plain = exact if way == "bfloat16" else plain
            for count in arguments.steps:
                line = f"{exact[count]:.4f} exact, {fastest[count]:.4f} by default"
                line += f", ratio {fastest[count] / exact[count]:.5f}"
                if folder not in (embedded, folders["bfloat16"]):
                    line += f", of bfloat16 {exact[count] / plain[count]:.5f}"
                print(f"{way}, {BATCH} x {count} tokens a step: {line}", flush=True)


def _prompts(folder: Path, num_tokens: int) -> list[list[int]]:
    """Eight pieces of prose."""
    text = "\n".join(
        line
        for name in DOCUMENTS
        for line in (DOCS / f"{name}.md").read_text(encoding="utf-8").splitlines()
        if not line.startswith(("|", "    ", "```", "<!--"))
    )
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    if len(ids) < BATCH * num_tokens:
        raise SystemExit(f"the documents have {len(ids)} tokens only")
    return [ids[first * num_tokens : (first + 1) * num_tokens] for first in range(BATCH)]


def _plain(embedded: Path, target: Path) -> Path:
    """A folder with the embedded model's numbers in bfloat16."""
    target.mkdir()
    for path in beside_weights(embedded):
        if path.name != "gguf.json":
            (target / path.name).write_bytes(path.read_bytes())
    model = load_model(embedded, "float32", torch.device("cpu"))
    tensors = dict(model.state_dict())
    for name, layer in quantised_layers(model):
        if layer is not model.get_output_embeddings():  # it is tied to the embedding
            tensors[f"{name}.weight"] = layer.weight
    narrow = {name: one.bfloat16().contiguous() for name, one in tensors.items()}
    save_file(narrow, target / "model.safetensors", {"format": "pt"})
    return target


def _perplexities(
    folder: Path, prompts: list[list[int]], steps: list[int], *, exact: bool
) -> dict[int, float]:
    """By the tokens of each prompt in a step."""
    per_prompt = -(-len(prompts[0]) // BLOCK_SIZE) + 1
    num_blocks = len(steps) * BATCH * per_prompt
    load = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_slots=BATCH,
        max_len=2 * len(prompts[0]),
        max_batch_tokens=BATCH * max(steps),
        weight_dtype="bfloat16",
        exact=exact,
    )
    with torch.inference_mode():
        engine = start(load, lambda _stage, _done: None)[0]
        found = {}
        plans = Driver(BLOCK_SIZE, list(range(num_blocks)))
        for count in steps:
            rows = [plans.add(slot, prompt, SCORING) for slot, prompt in enumerate(prompts)]
            scores: list[float] = []
            while rows[0].num_computed < len(prompts[0]):
                left = len(prompts[0]) - rows[0].num_computed
                reply = engine.run(plans.plan([(row, min(count, left)) for row in rows]))
                plans.take([(row, min(count, left)) for row in rows], reply)
                scores += [one for told in reply.prompts for one in told.chosen.tolist()]
            for row in rows:
                plans.leave(row)
            engine.run(plans.plan([]))
            assert len(scores) == BATCH * (len(prompts[0]) - 1)
            found[count] = float(np.exp(-np.mean(scores)))
    return found


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"
    keep_compiled(default_cache())
    main()
