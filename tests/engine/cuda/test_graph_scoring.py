"""A prompt's own log-probabilities, computed by replayed steps, leave its answer alone."""

from pathlib import Path

from tests.engine.interpreting import Interpreting
from tests.engine.tiny import save

PROGRAM = """
import sys
import torch
from tests.gpu.interpreted_engine import interpreted
from daemon.protocol.worker import Load
from tests.engine.driver import Driver
from tests.engine.model.test_exactness import BLOCK_SIZE, NUM_BLOCKS, prompt
from tests.engine.step.test_scoring import ASKS
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


def test_scores_of_one_token_do_not_become_the_last_one(
    interpreting: Interpreting, tmp_path: Path
) -> None:
    folder = save("llama", tmp_path / "llama")
    assert interpreting.output(PROGRAM, str(folder)) == "equal"
