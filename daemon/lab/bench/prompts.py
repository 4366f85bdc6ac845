"""Prompts of an exact number of tokens, random so that only equal prefixes are equal."""

import numpy as np
import numpy.typing as npt

from daemon.lab.workload.workload import Workload

FIRST_ID, LAST_ID = 1_000, 20_000
"""Ids [first, last): whole words in the vocabularies of today's models, above their special tokens
or far below them, and inside of every vocabulary of 20,000 or more."""

WORDS = tuple(
    """
    one two three four five six seven eight nine ten water hand day man name house school mother
    world night city tree year line country father boy girl book sea river paper table room
    light sun moon star wind rain snow fire stone bird fish dog cat horse road bridge ship train
    letter word story song garden farm hill field flower apple bread milk salt sugar tea glass
    door window wall floor bed chair clock key money gold iron wood cloth coat shoe hat ring red
    green blue black white brown long short big small old new young good bad hot cold high low
    near far left right early late slow fast open close first last north south east west summer
    winter spring morning evening week month hour minute king queen doctor teacher friend child
    people family group party music picture voice face eye ear nose mouth arm leg foot heart
    head body mind life time place thing part side end way work play walk run sit stand speak
    read write see hear think know learn ask answer give take bring send buy sell build break
    cut pull push turn move
    """.split()  # noqa: SIM905 - a list literal would be a line a word
)
"""Common English words: one token each, with the space before, in usual vocabularies."""

_REQUEST, _BLOCK, _WARM_UP = 0, 1, 2

Int64 = npt.NDArray[np.int64]


class Prompts:
    """The token ids of a workload's prompts, by seed; prompts of another seed share nothing."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._seed = seed

    def of_request(self, index: int) -> Int64:
        """The ids of a request's prompt: the blocks it shares with others, then its own."""
        num_tokens = int(self._workload.prompt_tokens[index])
        prefix = self._workload.prefixes[index] if self._workload.prefixes else ()
        size = self._workload.prefix_block
        parts = [
            self._draw(_BLOCK, block, size) for block in prefix[: -(-num_tokens // (size or 1))]
        ]
        shared = np.concatenate(parts)[:num_tokens] if parts else np.zeros(0, np.int64)
        own = self._draw(_REQUEST, index, num_tokens - shared.size)
        return np.concatenate((shared, own))

    def of_warm_up(self, index: int, row: int) -> Int64:
        """Ids for a warm-up, as long as a row's prompt and equal to no request's."""
        return self._draw(_WARM_UP, index, int(self._workload.prompt_tokens[row]))

    def _draw(self, kind: int, index: int, num_tokens: int) -> Int64:
        chance = np.random.default_rng((self._seed, kind, index))
        return chance.integers(FIRST_ID, LAST_ID, num_tokens)


def as_text(ids: Int64) -> str:
    """As many words as there are ids."""
    return " ".join(map(WORDS.__getitem__, (ids % len(WORDS)).tolist()))
