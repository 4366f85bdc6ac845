"""`python -m daemon.api.sandbox.grammar_process --fd N --folder F --vocab-size V`: checks grammars.

A grammar comes from a client, and compiling it may take minutes, all memory, or crash: a chain of a
few thousand rules overflows llguidance's stack. So a fork of this process tries it first. A
question is a grammar; the answer is why a worker must not get it (empty: it may).
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from daemon.api.sandbox.forking import Forks, QuestionLimits, begin
from daemon.models.grammar import Compiler, GrammarError, check

STACK_BYTES = 2 << 20
"""A quarter of a worker's: a grammar that fits this stack fits a worker's."""
LIMITS = QuestionLimits(cpu_s=0.45, waiting_s=5.0, memory_bytes=1 << 30, answer_bytes=64 << 10)
COMPILE_CPU_S = 0.25
"""A worker compiles between two steps, while all its sequences wait."""
TOKEN_CPU_S = 0.05
WALKS_CPU_S = 0.15
"""The most time for all walks through a grammar's texts."""
_WALKS = 2
_WALKED_TOKENS = 16

Tokens = npt.NDArray[np.intp]


def main() -> int:
    """Answer until the socket ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.api.sandbox.grammar_process")
    parser.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    parser.add_argument("--folder", type=Path, required=True, help="the model's")
    parser.add_argument("--vocab-size", type=int, required=True, help="the width of its logits")
    arguments = parser.parse_args()
    channel = begin(arguments.fd)
    # A main thread's stack grows up to this limit while it runs.
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    try:
        compiler = Compiler(arguments.folder, arguments.vocab_size)
    except GrammarError as error:
        channel.send(str(error).encode())
        return 0
    lengths = compiler.token_lengths()
    rehearse(compiler, lengths)
    Forks(
        lambda grammar: what_is_wrong(compiler, lengths, grammar.decode()).encode(), LIMITS
    ).serve(channel)
    return 0


def rehearse(compiler: Compiler, lengths: Tokens) -> None:
    """Make libraries import lazily loaded modules now: else every fork would, in limited time."""
    what_is_wrong(compiler, lengths, 'start: "yes" | "no"')


class SlowGrammarError(GrammarError):
    """A grammar took more time than a worker allows."""


def what_is_wrong(compiler: Compiler, lengths: Tokens, grammar: str) -> str:
    """Why a worker must not get this grammar; empty if it may. `lengths`: bytes of each token.

    A slow one is tried once more: on a busy machine, time of other processes can be counted.
    """
    try:
        try:
            _try(compiler, lengths, grammar)
        except SlowGrammarError:
            _try(compiler, lengths, grammar)
    except GrammarError as error:
        return str(error)
    return ""


def _try(compiler: Compiler, lengths: Tokens, grammar: str) -> None:
    """Compile a grammar and take some walks through it. Raises GrammarError."""
    began_s = time.thread_time()
    compiler.matcher_anew(grammar)
    if time.thread_time() - began_s > COMPILE_CPU_S:
        raise SlowGrammarError(f"it takes longer than {COMPILE_CPU_S} s to compile")
    until_s = time.thread_time() + WALKS_CPU_S
    # Long tokens reach sooner what only long answers show.
    _walk(compiler, grammar, lambda tokens: int(tokens[lengths[tokens].argmax()]), until_s)
    for seed in range(_WALKS):
        chance = random.Random(seed)  # noqa: S311 - no secrets here
        _walk(compiler, grammar, lambda tokens: int(chance.choice(tokens)), until_s)  # noqa: B023


def _walk(
    compiler: Compiler, grammar: str, choose: Callable[[Tokens], int], until_s: float
) -> None:
    """Follow the grammar for some tokens, ending only where nothing else is left.

    Raises GrammarError where that fails or is slow.
    """
    matcher = compiler.matcher(grammar)
    mask = np.zeros(compiler.mask_words, np.int32)
    for _ in range(_WALKED_TOKENS):
        began_s = time.thread_time()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        check(matcher)
        if matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        going_on = np.setdiff1d(allowed, compiler.ends)
        if not len(going_on):
            return
        matcher.consume_token(choose(going_on))
        check(matcher)
        if time.thread_time() - began_s > TOKEN_CPU_S:
            raise SlowGrammarError(f"it takes longer than {TOKEN_CPU_S} s for one token")
        if time.thread_time() > until_s:
            return


if __name__ == "__main__":
    sys.exit(main())
