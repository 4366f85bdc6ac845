"""An interpreted launch renames triton.language once for each module that it calls."""

from tests.engine.interpreting import Interpreting

PROGRAM = """
import torch
from triton.runtime import interpreter
from daemon.engine.cuda import triton as kernels
from tests.gpu.patched_once import RenameOnce

once = interpreter._patch_lang
assert isinstance(once, RenameOnce)
rename, modules = once._rename, []

def noted(function):
    modules.append(function.__module__)
    return rename(function)

once._rename = noted
before = interpreter.tl.load
states = torch.ones(3, 64)
kernels.add_norm(states, states.clone(), torch.ones(64), 1e-5)
first = modules[:]
assert first and len(set(first)) == len(first), first
assert interpreter.tl.load is before
kernels.add_norm(states, None, torch.ones(64), 1e-5)
assert modules[len(first):] == first, modules
print(len(first))
"""


def test_a_launch_renames_once_and_the_next_one_again(interpreting: Interpreting) -> None:
    assert int(interpreting.output(PROGRAM)) > 1
