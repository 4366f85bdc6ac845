"""A prompt's own log-probabilities, computed by replayed steps, leave its answer alone."""

import os
import subprocess
import sys
from pathlib import Path

from tests.engine.tiny import save

PROGRAM = """
import sys
import torch
from tests.gpu.interpreted_engine import interpreted
from daemon.protocol.worker import Load
from tests.engine.driver import Driver
from tests.engine.test_exactness import BLOCK_SIZE, NUM_BLOCKS, prompt
from tests.engine.test_scoring import ASKS
from tests.engine.tiny import CONTEXT_LEN, greedy, reference

load = Load(sys.argv[1], "cpu", "float32", BLOCK_SIZE, NUM_BLOCKS, 1, CONTEXT_LEN, 8)
tokens = prompt(2, 9)
with torch.inference_mode():
    engine = interpreted(load)
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    # Of two tokens one is predicted: a step of a single row, as a decode step is.
    running = plans.add(0, tokens, ASKS)
    for count in (2, 1):
        work = [(running, count)]
        plans.take(work, engine.run(plans.plan(work)))
assert running.outputs == greedy(reference("llama"), tokens, 2), running.outputs
print("equal")
"""


def test_scores_of_one_token_do_not_become_the_last_one(tmp_path: Path) -> None:
    # A process of its own: Triton reads the variable when it is first imported.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(save("llama", tmp_path / "llama"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr
