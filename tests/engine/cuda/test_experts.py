"""Experts that are computed together as on a GPU, whose kernels Triton interprets."""

from pathlib import Path

import pytest

from tests.engine.interpreting import Interpreting
from tests.engine.quantised import five_models
from tests.engine.quantised.test_experts import MIXTURE

pytest.importorskip("triton")

ONE_BY_ONE = """
import copy
import torch
from daemon.engine.cuda.experts import GroupedExperts, grouped
from daemon.engine.families import ACTIVATION, NONE
from tests.engine.quantised.test_experts import (
    EXPERTS, WIDTH, clamped_experts, experts, routes,
)

CASES = {
    "gates in a weight of their own": experts("Q4_0"),
    "gates that take turns, and biases": clamped_experts("MXFP4", False),
    "gates apart, and biases": clamped_experts("MXFP4", True),
}


def near(found, expected):
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


torch.manual_seed(0)
with torch.inference_mode():
    for name, one_by_one in CASES.items():
        together = grouped(one_by_one, NONE)
        assert isinstance(together, GroupedExperts), name
        for count in (1, 9):
            states = torch.randn(count, WIDTH)
            for chosen, shares in routes(count):
                expected = one_by_one(states, chosen, shares)
                assert near(together(states, chosen, shares), expected), (name, count)
        which = chosen[:, 0]
        assert near(together.each(states, which, 1), one_by_one.each(states, which, 1)), name
        assert together.weights == [it for layer in one_by_one.layers for it in layer.weights]
    others = {
        layer: torch.randn(rows.shape[1])
        for layer, rows in CASES["gates apart, and biases"].biases.items()
    }
    one_by_one = copy.deepcopy(CASES["gates apart, and biases"])
    together = grouped(CASES["gates apart, and biases"], NONE)
    for expert in range(EXPERTS):
        for held in (one_by_one, together):
            held.set_biases(expert, others)
    assert near(together(states, chosen, shares), one_by_one(states, chosen, shares))
    torchs = grouped(CASES["gates in a weight of their own"], frozenset({ACTIVATION}))
    one_by_one = CASES["gates in a weight of their own"]
    assert near(torchs(states, chosen, shares), one_by_one(states, chosen, shares))
print("equal")
"""

CAPTURED = """
import sys
from pathlib import Path
import torch
from daemon.engine.cuda.experts import GroupedExperts
from daemon.engine.families import EXPERTS, NONE
from daemon.engine.model.backend import captures
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.protocol.worker import Load
from tests.engine.driver import Driver
from tests.engine.quantised.test_models import greedy, unpacked
from tests.gpu.interpreted_engine import interpreted

folder, replays = Path(sys.argv[1]), []
load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32)
for by_torch, kind in ((NONE, GroupedExperts), (frozenset({EXPERTS}), QuantisedExperts)):
    with torch.inference_mode():
        engine = interpreted(load, by_torch)
    forward = engine.model._forward
    assert engine.model.fused
    assert any(isinstance(product, kind) for product in forward.products()), kind
    assert captures(forward, engine.cache, by_torch) is (by_torch == NONE)
    if by_torch == NONE:
        driver, prompt = Driver(8, list(range(32))), [2, 7, 1]
        row = driver.add(0, prompt)
        with torch.inference_mode():
            driver.take([(row, 3)], engine.run(driver.plan([(row, 3)])))
            driver.take([(row, 1)], engine.run(driver.plan([(row, 1)])))
        assert row.outputs == greedy(unpacked(folder), prompt)[:2]
        steps = engine.model._programs._steps
        assert steps and all(step.compared for step in steps.values()), steps
print("equal")
"""


def test_experts_give_together_what_they_give_one_by_one(interpreting: Interpreting) -> None:
    assert interpreting.output(ONE_BY_ONE) == "equal"


def test_decode_steps_of_a_packed_mixture_are_captured(
    interpreting: Interpreting, tmp_path: Path
) -> None:
    folder, _ = five_models.write(MIXTURE, "int8", tmp_path)
    assert interpreting.output(CAPTURED, str(folder)) == "equal"
