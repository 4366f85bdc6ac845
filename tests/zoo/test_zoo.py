"""A few of the zoo's variants, each served equal or refused by its mechanism; and all, in soak."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.zoo.build import build
from tests.zoo.judge import EQUAL, REFUSED, outcome
from tests.zoo.oracle import TOLERANCE, Oracle, Verdict
from tests.zoo.table import rows, rows_of
from tests.zoo.types import types, variants_of
from tests.zoo.variant import Variant

PAGE = ROOT / "docs" / "models.md"
NUM_PIECES = 16

SERVED = (
    "llama/rope: llama3",
    "llama/bfloat16",
    "qwen3/mqa",
    "qwen2/sharded",
    "qwen2_moe/base",
    "ministral3/rope: llama_4_scaling_beta",
    "smollm3/a layer without positions",
    "gpt_bigcode/base",
    "nemotron/base",
    "stablelm/base",
    "bert/is_decoder=true",
    "dbrx/bfloat16",
    "mistral/window",
    "gemma2/window",
    "gemma3_text/full, sliding",
    "gpt_oss/base",
    "phi3/rope: longrope",
    "gemma4_text/heads shared by layers",
    "llama4_text/chunks",
    "deepseek_v2/base",
    "minicpm3/base",
    "qwen3_5_text/states, attention",
    "qwen3_next/norm_topk_prob=false",
    "falcon_h1/base",
    "mamba/bfloat16",
    "lfm2/convolution",
    "kimi_linear/base",
    "youtu/base",
)
UNSERVED = {
    "bert/base": "also see those after them",
    "deepseek_v32/base": "indexed_attention",
    "camembert/is_decoder=true": "counted from its padding token",
    "diffllama/base": "attend twice",
    "doge/base": "masks of its own",
    "falcon/base": "does not use transformers' attention interface",
    "hrm_text/base": "not once each",
    "jetmoe/base": "its attention has",
}


def find(label: str) -> Variant:
    model_type, _, name = label.partition("/")
    return next(one for one in variants_of(model_type) if one.name == name)


@pytest.mark.parametrize("label", SERVED)
def test_it_is_equal_and_its_mutants_are_not(label: str) -> None:
    found = outcome(find(label))
    assert found.what == EQUAL, found
    assert found.mutants


def test_layers_with_windows_are_tried_unrounded_too() -> None:
    found = outcome(replace(find("gemma3_text/full, sliding"), dtype="bfloat16"))
    assert found.what == EQUAL, found


def test_a_delta_net_is_no_further_from_float64_than_transformers_is(tmp_path: Path) -> None:
    """Here its own float32 is beyond the bound."""
    build(find("qwen3_next/norm_topk_prob=false"), tmp_path / "m")
    oracle = Oracle(tmp_path / "m", "float32")
    largest = oracle.float64[2].abs().max()

    def shifted(share: float) -> Verdict:
        rows = [(2, at, row + share * largest) for at, row in enumerate(oracle.float64[2])]
        return oracle.judge_rows(rows)

    allowed = shifted(1e-3).allowed
    assert TOLERANCE < allowed < 1e-4
    assert shifted(0.99 * allowed).equal
    assert not shifted(1.01 * allowed).equal


@pytest.mark.parametrize("label", UNSERVED)
def test_it_is_refused_by_its_mechanism(label: str) -> None:
    found = outcome(find(label))
    assert found.what == REFUSED, found
    assert UNSERVED[label] in found.why


def test_the_page_names_every_type() -> None:
    assert sorted(rows_of(PAGE.read_text())) == types()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("piece", range(NUM_PIECES))
def test_nothing_is_wrong_and_the_page_is_true(piece: int, tmp_path: Path) -> None:
    """In a process of its own: what is wrong may write where it should not."""
    some = types()[piece::NUM_PIECES]
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo", "--results", str(tmp_path), *some],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    told = rows_of(PAGE.read_text())
    assert rows(tmp_path, some, {}) == [told[name] for name in some]
