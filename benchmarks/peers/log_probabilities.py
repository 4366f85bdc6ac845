"""Compare log-probabilities with llama.cpp's, on a tiny file of each architecture.

    python -m benchmarks.peers.log_probabilities DIR [--architectures llama4 ...] [--formats F32]

DIR has `v-xllamacpp` (see the package's docstring). A file of random weights is written for each
architecture of `tests/engine/loading/gguf_cases.py`, as llama.cpp's converter would write it, and
both read it. For prompts of some lengths the probabilities of all next tokens are compared: what is
printed is the largest difference of a logarithm, and how much of that is the other's own rounding:
of F32 it rounds nothing, of Q8_0 it rounds a layer's inputs to 8 bits, and llmd computes here
without. An architecture that the other does not load is printed with its words.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import load_model
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_cases import CASES, VOCAB_SIZE
from tests.engine.loading.gguf_written import tiny, write_model

LENGTHS = (1, 5, 17, 40, 100)
"""Of prompts, in tokens: within windows and beyond them."""
FORMATS = ("F32", "Q8_0", "Q4_0")
_LETTER = 67
"""The token "a"."""
_ASK = Path(__file__).parent / "ask_xllamacpp.py"


def prompts() -> list[list[int]]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCAB_SIZE, (num,), generator=generator).tolist() for num in LENGTHS]


def ours(path: Path, folder: Path) -> torch.Tensor:
    """float32 [prompts, tokens] by llmd. Raises ModelError."""
    convert(path, folder)
    model: Any = load_model(folder, "float32", torch.device("cpu"))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        rows = [
            model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1]
            for prompt in prompts()
        ]
    return torch.stack(rows).log_softmax(-1)


def theirs(path: Path, python: Path) -> torch.Tensor | str:
    """float32 [prompts, tokens] by llama.cpp, or why it has none."""
    done = subprocess.run(
        [str(python), str(_ASK), str(path), str(VOCAB_SIZE), str(_LETTER)],
        input=json.dumps(prompts()),
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if len(lines) == len(LENGTHS):
        return torch.tensor(lines)
    faults = [line for line in done.stderr.splitlines() if "error loading model" in line]
    said = faults[0].partition("error loading model")[2] if faults else done.stderr[-200:]
    return f"{said.strip(': ')[:150]} (status {done.returncode})"


def compared(architecture: str, form: str, python: Path) -> str:
    """What is printed of one file."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "tiny.gguf")
        write_model(path, architecture, tiny(CASES[architecture]), form)
        other = theirs(path, python)
        if isinstance(other, str):
            return f"not loaded by llama.cpp: {other}"
        try:
            own = ours(path, Path(place, "made"))
        except ModelError as error:
            return f"refused by llmd: {error}"
    likely = own > own.amax(-1, keepdim=True) - 5
    worst = (own - other).abs()
    same = int((own.argmax(-1) == other.argmax(-1)).sum())
    most, mean = float(worst.max()), float(worst[likely].mean())
    firsts = f"the first token is the same for {same} of {len(LENGTHS)} prompts"
    return f"{most:.1e} at most, {mean:.1e} in the mean of likely tokens; {firsts}"


def main() -> None:
    """Print a line for each architecture and format."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.log_probabilities", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--architectures", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args()
    python = args.folder.resolve() / "v-xllamacpp" / "bin" / "python"
    if not python.exists():
        sys.exit(f"{args.folder} has no v-xllamacpp: see benchmarks/peers")
    for architecture in args.architectures:
        for form in args.formats:
            print(f"{architecture:16} {form:5} {compared(architecture, form, python)}", flush=True)


if __name__ == "__main__":
    main()
