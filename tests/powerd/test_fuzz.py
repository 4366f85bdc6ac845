"""Whatever comes in, llmd-powerd lives, answers every line, and sets no limit out of bounds."""

import json
import os
import random
from pathlib import Path

import pytest

from tests.powerd.fake_cards import (
    MAX_MW,
    MIN_MW,
    NUM_CARDS,
    ORIGINAL_MW,
    FakeCards,
    needs_compiler,
    uuid_of,
)
from tests.powerd.live import Powerd, Talk

pytestmark = needs_compiler

VALUES = [
    *(None, True, -1, 0, 1e-320, 99.99999, 350.0001, 1e308, -1e308, 2**63, -(2**70), 10**400),
    *("250", "", "NaN", [], [[]], {}, {"watts": 1}, "\ud800", "GPU-fake-0\n", "\x00"),
]
TOKENS = [b"1e999", b"-0.0", b"NaN", b"null", b"\\u0000", b"\xff", b'"', b"{", b"}", b"[" * 50]
LIMIT_BYTES = 4096
A_BATCH = 20


def good(chance: random.Random) -> dict[str, object]:
    question: dict[str, object] = {
        "verb": chance.choice(["lease", "lease", "read"]),
        "device": uuid_of(chance.randrange(NUM_CARDS + 1)),
    }
    if question["verb"] == "lease":
        question["watts"] = chance.choice([None, chance.uniform(0, 500), chance.randrange(600)])
    return question


def odd(chance: random.Random) -> bytes:
    """A question with one value, key or piece in place of another."""
    question = good(chance)
    if chance.random() < 0.5:
        key = chance.choice([*question, "more"])
        question[key] = chance.choice(VALUES)
    if chance.random() < 0.2:
        question.pop(chance.choice(list(question)))
    data = bytearray(json.dumps(question).encode())
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randrange(1, 9)]
            case 2:
                data[place:place] = chance.choice(TOKENS)
            case _:
                data[place:place] = data[: chance.randrange(len(data) + 1)]
    return bytes(data)


def line(chance: random.Random) -> bytes:
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:
            return b"[" * chance.randrange(LIMIT_BYTES - 1)
        case 2 | 3:
            return json.dumps(good(chance)).encode()
        case _:
            return odd(chance)[: LIMIT_BYTES - 1]


def exchange(talk: Talk, chance: random.Random) -> None:
    """Some lines in one piece or several; each end of a line is answered once."""
    data = b"".join(line(chance) + b"\n" for _ in range(A_BATCH))
    cut = chance.randrange(len(data))
    for piece in (data[:cut], data[cut:]):
        talk.sock.sendall(piece)
    for _ in range(data.count(b"\n")):
        told = talk.answer()
        if told["ok"]:
            assert MIN_MW <= 1000 * told["cap_watts"] <= MAX_MW


def overflow(talk: Talk, chance: random.Random) -> None:
    """A line that is too long: the end of this connection."""
    too_long = b" " * chance.randrange(LIMIT_BYTES, 3 * LIMIT_BYTES) + b"\n"
    assert "at most" in (talk.is_closed_after(too_long) or "at most")


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_random_lines(tmp_path: Path, cards: FakeCards, count: int) -> None:
    chance = random.Random(int(os.environ.get("LLMD_SEED", "1")))
    with Powerd(tmp_path, cards) as powerd:
        talks = [powerd.talk() for _ in range(4)]
        for _ in range(count // A_BATCH):
            place = chance.randrange(len(talks))
            exchange(talks[place], chance)
            assert all(MIN_MW <= limit_mw <= MAX_MW for limit_mw in cards.limits_mw())
            if chance.random() < 0.1:
                overflow(talks[place], chance)
                talks[place] = powerd.talk()
        for talk in talks:
            talk.close()
        powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)
        powerd.until(lambda: powerd.saved() == {})
        assert sum(card.sets for card in cards.cards) > count // 50
        assert cards.num_bad_sets() == 0 and cards.machine.num_inits == 1
        assert "Traceback" not in powerd.log()
        assert powerd.kill(15) == 0
