"""Compare log-probabilities with llama.cpp's, on a tiny file of each architecture.

    python -m benchmarks.peers.log_probabilities DIR [--architectures llama4 ...] [--formats F32]

DIR has `v-xllamacpp` (see the package's docstring). A file of random weights is written for each
architecture of `tests/engine/loading/gguf_cases.py`, as llama.cpp's converter would write it, and
for prompts of some lengths the probabilities of all next tokens are compared. The columns are the
largest differences of a logarithm: of llmd with the file from llama.cpp with a file of the same
numbers in float32; the same where llmd rounds GELU to 16 bits, as llama.cpp does on a CPU ("-"
where a model has no GELU); and of llama.cpp with the one file from itself with the other, which is
what it rounds of its own. Then for how many prompts the likeliest token of the first two is the
same. An architecture that llama.cpp does not load is printed with its words.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import gelu

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


class _Rounded(torch.nn.Module):
    """GELU of 16 bits."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As llama.cpp looks it up in a table."""
        return gelu(states.half().float(), approximate="tanh").half().float()


def load(path: Path, folder: Path) -> Any:
    """A file's model in llmd. Raises ModelError."""
    convert(path, folder)
    model: Any = load_model(folder, "float32", torch.device("cpu"))
    model.set_attn_implementation("eager")
    return model


def ours(model: Any) -> torch.Tensor:
    """float32 [prompts, tokens] by llmd."""
    with torch.inference_mode():
        rows = [
            model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1]
            for prompt in prompts()
        ]
    return torch.stack(rows).log_softmax(-1)


def round_gelu(model: Any) -> bool:
    """Have a model round its GELU as llama.cpp does; whether it has one."""
    found = False
    for module in model.modules():
        experts = getattr(getattr(module, "gated", None), "__self__", None)
        for owner in (module, experts):
            for name in ("act_fn", "act", "activation_fn"):
                if "gelu" in type(getattr(owner, name, None)).__name__.lower():
                    setattr(owner, name, _Rounded())
                    found = True
    return found


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
        packed, plain, model = (
            Path(place, "a.gguf"),
            Path(place, "b.gguf"),
            tiny(CASES[architecture]),
        )
        write_model(packed, architecture, model, form)
        write_model(plain, architecture, model, "F32")  # of the numbers that the first one has
        others = [theirs(path, python) for path in (packed, plain)]
        for other in others:
            if isinstance(other, str):
                return f"not loaded by llama.cpp: {other}"
        try:
            here = load(packed, Path(place, "made"))
        except ModelError as error:
            return f"refused by llmd: {error}"
        own = ours(here)
        rounded = _most(ours(here), others[1]) if round_gelu(here) else "-"
    same = int((own.argmax(-1) == others[1].argmax(-1)).sum())
    firsts = f"{same} of {len(LENGTHS)}"
    return f"{_most(own, others[1]):>9} {rounded:>9} {_most(*others):>9}   {firsts}"


def _most(one: Any, other: Any) -> str:
    return f"{float((one - other).abs().max()):.1e}"


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
