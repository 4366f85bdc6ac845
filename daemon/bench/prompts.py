"""Prompts of an exact number of tokens, drawn so that only equal prefixes are equal."""

import numpy as np
import numpy.typing as npt

from daemon.workload.workload import Workload

FIRST_ID, LAST_ID = 1_000, 20_000
"""Ids [first, last): whole words in the vocabularies of today's models, above their special tokens
or far below them, and inside of every vocabulary of 20,000 or more."""

WORDS = tuple(
    "the of and to in is that it was for on are as with his they at be this from have or by one had"
    " not but what all were when we there can an your which their said if do will each about how up"
    " out them then she many some so these would other into has more her two like him see time could"
    " no make than first been its who now people my made over did down only way find use may water"
    " long little very after words called just where most know get through back much before go good"
    " new write our used me man too any day same right look think also around another came come work"
    " three word must because does part even place well such here take why things help put years"
    " different away again off went old number great tell men say small every found still between"
    " name should home big give air line set own under read last never us left end along while might"
    " next sound below saw something thought both few those always looked show large often together"
    " asked house world going want school important until form food keep children feet land side"
    " without boy once animals life enough took sometimes four head above kind began almost live"
    " page got earth need far hand high year mother light parts country father let night following"
    " picture being study second eyes soon times story boys since white days ever paper hard near"
    " sentence better best across during today others however sure means knew try told young miles"
    " sun ways thing whole hear example heard several change answer room sea against top turned"
    " learn point city play toward five using himself usually".split()
)
"""Common English words: one token each, with the space before, in usual vocabularies."""

_REQUEST, _BLOCK, _WARM_UP = 0, 1, 2

Int64 = npt.NDArray[np.int64]


class Prompts:
    """The token ids of a workload's prompts, by seed; another seed shares nothing with them."""

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
        """Ids of the length of a row's prompt, equal to no request's."""
        return self._draw(_WARM_UP, index, int(self._workload.prompt_tokens[row]))

    def _draw(self, kind: int, index: int, num_tokens: int) -> Int64:
        chance = np.random.default_rng((self._seed, kind, index))
        return chance.integers(FIRST_ID, LAST_ID, num_tokens)


def as_text(ids: Int64) -> str:
    """As many words as there are ids."""
    return " ".join(map(WORDS.__getitem__, (ids % len(WORDS)).tolist()))
