"""Model folders with one thing wrong, by seed: each file of a good one, damaged in each way."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 7.5, 1e308, 2**31, 2**63, 10**30,
    "", "x", "\ud800", [], {}, [0], {"a": 1},
)  # fmt: skip


def mutant(good: Path, folder: Path, seed: int) -> str:
    """Write a damaged copy of `good` to `folder`; what was done, for a failing test's message."""
    chance = random.Random(seed)
    shutil.copytree(good, folder)
    path = folder / chance.choice([name for name in FILES if (good / name).exists()])
    damage = chance.choice(_DAMAGES)
    if path.suffix == ".json" and chance.random() < 0.6:
        damage = _odd_value
    damage(path, chance)
    return f"seed {seed}: {damage.__name__} of {path.name}"


def _flip_bits(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    end = min(len(data), chance.choice([16, 200, 2000, len(data)]))
    for _ in range(chance.choice([1, 1, 4, 50])):
        data[chance.randrange(end)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.choice([0, 1, 8, len(data) // 2, len(data) - 1])])


def _remove(path: Path, _chance: random.Random) -> None:
    path.unlink()


def _garbage(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.choice([8, 100, 5000])))


def _nest(path: Path, _chance: random.Random) -> None:
    path.write_bytes(b"[" * 100_000)


def _grow(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice([1, 1000])))


def _odd_value(path: Path, chance: random.Random) -> None:
    """One value of a JSON file, however deep, becomes an unexpected one."""
    if path.suffix != ".json":
        _flip_bits(path, chance)
        return
    data = json.loads(path.read_bytes())
    places = list(_places(data))
    at, key = chance.choice(places[:40] if chance.random() < 0.5 else places)
    if chance.random() < 0.2:
        del at[key]
    else:
        at[key] = chance.choice(ODD)
    path.write_text(json.dumps(data))


def _places(value: Any) -> "list[tuple[Any, Any]]":
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, below in list(items):
        found.append((value, key))
        if isinstance(below, dict | list):
            found += _places(below)
    return found


_DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    _flip_bits, _flip_bits, _cut, _remove, _garbage, _nest, _grow, _odd_value,
)  # fmt: skip
