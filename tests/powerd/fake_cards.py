"""Four made-up cards behind a made-up libnvidia-ml.so.1, through which the real pynvml goes."""

import ctypes
import functools
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
NUM_CARDS = 4
ORIGINAL_MW = (300_000, 250_000, 200_000, 150_000)
"""The cards' limits before anybody leased one; the second's is not its default."""
MIN_MW, MAX_MW, DEFAULT_MW = 100_000, 350_000, 300_000
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, DRIVER_NOT_LOADED = 3, 4, 15, 9
SW_POWER_CAP = 4
DIE_BEFORE_SET, DIE_AFTER_SET = 1, 2

_FOLDERS: list["tempfile.TemporaryDirectory[str]"] = []
"""They are removed with the process that holds them."""

needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler is here (cc, gcc or clang) to make a libnvidia-ml of"
)


class FakeCard(ctypes.Structure):
    """`struct card` of fake_nvml.c."""

    _fields_ = [
        ("uuid", ctypes.c_char * 96),
        *((name, ctypes.c_uint32) for name in ("present", "limit_mw", "min_mw", "max_mw")),
        *((name, ctypes.c_uint32) for name in ("default_mw", "power_mw")),
        *((name, ctypes.c_uint64) for name in ("energy_mj", "reasons")),
        *((name, ctypes.c_uint32) for name in ("sets", "bad_sets", "look_code", "set_code")),
        *((name, ctypes.c_uint32) for name in ("energy_code", "reasons_code", "round_mw")),
    ]


class FakeMachine(ctypes.Structure):
    """`struct machine` of fake_nvml.c."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("init_code", "num_inits", "moment", "slow_us")),
        ("cards", FakeCard * NUM_CARDS),
    ]


class FakeCards:
    """The machine, with its cards as they are now; what is assigned is seen by all processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(FakeMachine)))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 0)
        self.machine = FakeMachine.from_buffer(self._mapped)
        self.reset()

    def reset(self) -> None:
        """As they were before anybody asked for anything."""
        self._mapped[:] = bytes(len(self._mapped))
        for number, (card, limit_mw) in enumerate(zip(self.cards, ORIGINAL_MW, strict=True)):
            card.uuid = uuid_of(number).encode()
            card.present, card.limit_mw, card.default_mw = 1, limit_mw, DEFAULT_MW
            card.min_mw, card.max_mw, card.power_mw = MIN_MW, MAX_MW, 71_500
            card.energy_mj, card.reasons = 12_345_678, SW_POWER_CAP

    def heal(self) -> None:
        """Fail no more."""
        self.machine.init_code = self.machine.moment = self.machine.slow_us = 0
        for card in self.cards:
            card.present = 1
            card.look_code = card.set_code = card.energy_code = card.reasons_code = 0

    @property
    def cards(self) -> "ctypes.Array[FakeCard]":
        return self.machine.cards

    def limits_mw(self) -> tuple[int, ...]:
        return tuple(card.limit_mw for card in self.cards)

    def num_bad_sets(self) -> int:
        """How often a limit was set that a card cannot have."""
        return sum(card.bad_sets for card in self.cards)


def uuid_of(number: int) -> str:
    """A name that no real card has."""
    return f"GPU-fake-{number}"


@functools.cache
def library_folder(*flags: str) -> Path:
    """A folder with the library, for LD_LIBRARY_PATH; compiled once a process."""
    assert COMPILER is not None
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="llmd-fake-nvml-"))
    folder = Path(_FOLDERS[-1].name)
    command = [COMPILER, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *flags, str(SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    return folder


def environment(cards: FakeCards, *flags: str) -> dict[str, str]:
    """Ours, with the made-up library before any real one."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library_folder(*flags)),
        "FAKE_NVML": str(cards.path),
    }
