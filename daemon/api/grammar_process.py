"""`python -m daemon.api.grammar_process --fd N --folder F --vocab-size V`: tries grammars out.

A grammar comes from a client, and compiling one may take minutes, all memory, or the process: a
chain of a few thousand rules overflows llguidance's stack. So a process of its own goes first,
which may be killed, and which the kernel ends by SIGPROF when it has computed for too long. It says
why a worker must not have the grammar, or nothing.

One frame in, a grammar; one frame out, what is wrong with it (empty: nothing). The first frame
out says why there is nothing to ask for here (empty: it is ready).
"""

import argparse
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np

from daemon.models.grammar import Compiler, GrammarError, check
from daemon.wire.blocking import BlockingChannel
from daemon.wire.parent import die_with_parent

NICENESS = 10
STACK_BYTES = 2 << 20
"""A quarter of a worker's: what is not too deep for this process is not too deep for a worker."""
MORE_MEMORY_BYTES = 2 << 30
"""Of address space, beyond what it has once the vocabulary is loaded."""
COMPILE_CPU_S = 0.25
"""A worker compiles between two steps of everybody's."""
TOKEN_CPU_S = 0.05
_WALKS = 2
_WALKED_TOKENS = 12


def main() -> int:
    """Answer until the socket's end; the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.api.grammar_process")
    parser.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    parser.add_argument("--folder", type=Path, required=True, help="the model's")
    parser.add_argument("--vocab-size", type=int, required=True, help="the width of its logits")
    parser.add_argument("--cpu-s", type=float, required=True, help="most that a grammar may take")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    die_with_parent(arguments.fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = BlockingChannel(socket.socket(fileno=arguments.fd))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(channel, arguments))
    thread.start()
    thread.join()
    return 0


def _serve(channel: BlockingChannel, arguments: argparse.Namespace) -> None:
    try:
        compiler = Compiler(arguments.folder, arguments.vocab_size)
    except GrammarError as error:
        channel.send(str(error).encode())
        return
    _limit_memory()
    channel.send(b"")
    while (grammar := channel.receive()) is not None:
        signal.setitimer(signal.ITIMER_PROF, arguments.cpu_s)  # whose end is this process's
        said = what_is_wrong(compiler, grammar.decode())
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        channel.send(said.encode())


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MORE_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def what_is_wrong(compiler: Compiler, grammar: str) -> str:
    """Why a worker must not have this grammar; empty if it may."""
    try:
        began_s = time.thread_time()
        compiler.matcher_anew(grammar)
        if time.thread_time() - began_s > COMPILE_CPU_S:
            return f"it takes longer than {COMPILE_CPU_S} s to compile"
        for seed in range(_WALKS):
            _walk(compiler, grammar, random.Random(seed))  # noqa: S311 - no secrets here
    except GrammarError as error:
        return str(error)
    return ""


def _walk(compiler: Compiler, grammar: str, chooser: random.Random) -> None:
    """Follow the grammar for some tokens. Raises GrammarError where that fails or is slow."""
    matcher = compiler.matcher(grammar)
    mask = np.zeros(compiler.mask_words, np.int32)
    for _ in range(_WALKED_TOKENS):
        began_s = time.thread_time()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        check(matcher)
        if matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        matcher.consume_token(int(chooser.choice(allowed)))
        check(matcher)
        if time.thread_time() - began_s > TOKEN_CPU_S:
            raise GrammarError(f"it takes longer than {TOKEN_CPU_S} s for one token")


if __name__ == "__main__":
    sys.exit(main())
