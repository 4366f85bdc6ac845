"""The machine code that unpacks 8-bit numbers, carried out here instruction by instruction.

Triton's interpreter takes other code in its place, so nothing else runs it without a GPU.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.cuda.triton.fold import _FP8_HALVES, _INT8_HALVES

Words = npt.NDArray[np.uint32]

PAIRS = np.arange(1 << 16, dtype=np.uint16)
"""Every low byte with every high one."""


def prmt(low: Words, high: Words, selector: Words) -> Words:
    """Each nibble of the selector names a byte of (low, high), 0 to 7."""
    found = np.zeros(np.broadcast(low, high).shape, np.uint32)
    for place in range(4):
        index = int(selector) >> 4 * place & 0xF
        assert index < 8, "a sign is not copied here"
        word = low if index < 4 else high
        found |= (word >> np.uint32(8 * (index % 4)) & np.uint32(0xFF)) << np.uint32(8 * place)
    return found


def sub_f16x2(left: Words, right: Words) -> Words:
    halves = [np.ascontiguousarray(np.broadcast_to(w, left.shape)) for w in (left, right)]
    return (halves[0].view(np.float16) - halves[1].view(np.float16)).view(np.uint32)


INSTRUCTIONS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "xor.b32": np.bitwise_xor,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "shl.b32": np.left_shift,
    "shr.b32": np.right_shift,
    "prmt.b32": prmt,
    "sub.f16x2": sub_f16x2,
}


def carried_out(code: str, pairs: npt.NDArray[np.uint16]) -> list[npt.NDArray[np.float16]]:
    """The low and the high numbers of `pairs` [2 * N], two of which are in a register."""
    registers = {"$2": pairs.view(np.uint32)}
    written: set[str] = set()
    for line in code.strip("{} \n").split(";"):
        name, _, operands = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *sources = (operand.strip() for operand in operands.split(","))
        # The compiler may give an input and an output the same register.
        assert not ("$2" in sources and written & {"$0", "$1"})
        values = [
            registers[s] if s in registers else np.asarray(int(s, 0), np.uint32) for s in sources
        ]
        registers[target] = INSTRUCTIONS[name](*values)
        written.add(target)
    return [np.ascontiguousarray(registers[name]).view(np.float16) for name in ("$0", "$1")]


def test_int8() -> None:
    bytes_ = PAIRS.view(np.int8).reshape(-1, 2)
    for numbers, column in zip(carried_out(_INT8_HALVES.value, PAIRS), bytes_.T, strict=True):
        assert np.array_equal(numbers.astype(np.float32), column.astype(np.float32))


def test_fp8() -> None:
    bytes_ = torch.from_numpy(PAIRS.view(np.uint8).reshape(-1, 2).copy())
    values = bytes_.view(torch.float8_e4m3fn).float()
    for numbers, column in zip(carried_out(_FP8_HALVES.value, PAIRS), values.T, strict=True):
        are_numbers = ~column.isnan().numpy()
        got = numbers.astype(np.float32) * 256
        assert np.array_equal(got[are_numbers], column.numpy()[are_numbers])
