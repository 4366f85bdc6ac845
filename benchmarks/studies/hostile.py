"""Workloads that are hard on a scheduler, and what every policy makes of them, in the simulator.

All are of OPT-13B under DistServe's fit, whose steps do not vary here. In `large` contexts have
2,048 tokens, memory holds seven of them unless a workload says otherwise, and 1,000 requests come.
In `medium` and `small` contexts, prompts, answers and pauses are shorter in proportion; the tests
run these, and `large` under soak. Requests come within 0.6 of the time in which the memory could
hold them all, so that it is short; those of bursts come at once. Each policy sees the same
requests, with the daemon's own predictor. `tests/lab/simulator/test_hostile.py` has the bounds.

For each policy: throughput (output tokens over the time of the whole run), mean normalised latency
and P99 TTFT, each with its ratio to `sarathi`'s; the longest gap of all streams; preemptions for
each answer, and the most of one; steps.

    python -m benchmarks.studies hostile [--size large] [--workloads burst-500,giants]
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.studies.frame import listed
from benchmarks.studies.scheduling import PROFILE
from daemon.lab.profiles.load import load_profile
from daemon.lab.report.measures import measure
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.simulator.run import Prepared, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import Workload, WorkloadSpec
from daemon.memory.sizing import block_bytes
from daemon.scheduler.policies import POLICIES

Int32 = npt.NDArray[np.int32]

HOST_POOLS = 4.0  # host memory to swap to
SLOW_BYTES_PER_S = 0.25e9
BLOCK = 8
STEP_S = 0.025
"""Of full memory, about: what the span of arrivals is reckoned with."""
SPAN_SHARE = 0.6
BASE = "sarathi"


class Size(NamedTuple):
    """How long contexts are, how many requests come, and what is scaled with the contexts."""

    max_len: int
    contexts: int  # that fit into memory; 12e9 bytes hold seven of OPT-13B's
    num: int  # requests, but for bursts
    max_pause_s: float
    max_batch_tokens: int


SIZES = {
    "small": Size(max_len=64, contexts=2, num=24, max_pause_s=0.25, max_batch_tokens=32),
    "medium": Size(max_len=512, contexts=7, num=160, max_pause_s=1.0, max_batch_tokens=256),
    "large": Size(max_len=2048, contexts=7, num=1000, max_pause_s=4.0, max_batch_tokens=512),
}


class Asked(NamedTuple):
    """What is asked, of which machine."""

    prompts: Int32
    answers: Int32
    at_once: bool = False
    prefixes: Sequence[tuple[int, ...]] = ()  # of each prompt's first blocks
    contexts: int = 0  # that fit into memory; 0: as the size has it
    host_pools: float = HOST_POOLS
    link_bytes_per_s: float = 0.0  # 0: as the profile has it
    exact: bool = False  # clients ask for no more than they get
    n: int = 1


Chance = np.random.Generator
Maker = Callable[[Size, Chance], Asked]


def even(chance: Chance, num: int, least: int, most: int) -> Int32:
    """Lengths from `least` to `most`."""
    return chance.integers(least, most, num, dtype=np.int32, endpoint=True)


def heavy(chance: Chance, num: int, least: int, most: int) -> Int32:
    """Lengths with a heavy tail."""
    drawn = least * (1.0 + chance.pareto(1.1, num))
    return np.minimum(drawn, most).astype(np.int32)


def mixed(size: Size, chance: Chance, num: int = 0) -> tuple[Int32, Int32]:
    """Prompts of up to an eighth of the context, answers with a heavy tail."""
    num, most = num or size.num, size.max_len
    return even(chance, num, 1, most // 8), heavy(chance, num, most // 32, most // 2)


def burst(size: Size, chance: Chance, num: int) -> Asked:
    """So many at once, with short answers."""
    most = size.max_len // 8
    return Asked(even(chance, num, 1, most), heavy(chance, num, most // 4, 2 * most), at_once=True)


def giants(size: Size, chance: Chance) -> Asked:
    """One in a hundred fills its context; the others are short."""
    num = 2 * size.num
    prompts, answers = (even(chance, num, 1, size.max_len // 16) for _ in range(2))
    answers[50::100] = size.max_len - prompts[50::100]
    return Asked(prompts, answers)


def to_the_limit(size: Size, chance: Chance) -> Asked:
    """Every answer is as long as its client allows, and every second fills its context."""
    prompts, answers = mixed(size, chance, size.num // 2)
    answers[::2] = size.max_len - prompts[::2]
    return Asked(prompts, answers, exact=True)


def drift(size: Size, chance: Chance) -> Asked:
    """Answers grow sixteenfold along the run."""
    prompts = even(chance, size.num, 1, size.max_len // 8)
    grown = size.max_len / 32 * 16.0 ** np.linspace(0.0, 1.0, size.num)
    return Asked(prompts, (grown * chance.uniform(0.7, 1.3, size.num)).astype(np.int32))


def slow_link(size: Size, chance: Chance) -> Asked:
    """Copies take longer than computing again."""
    return Asked(*mixed(size, chance), link_bytes_per_s=SLOW_BYTES_PER_S)


def no_host(size: Size, chance: Chance) -> Asked:
    """Who gives way is computed again."""
    return Asked(*mixed(size, chance), host_pools=0.0)


def one_context(size: Size, chance: Chance) -> Asked:
    """Memory for one context: the longest fit alone."""
    prompts, answers = mixed(size, chance, size.num // 2)
    return Asked(prompts, answers, contexts=1)


def one_length(size: Size, chance: Chance) -> Asked:
    """All alike, so that no order is better than another."""
    return Asked(*(np.full(size.num, size.max_len // part, np.int32) for part in (8, 4)))


def two_lengths(size: Size, chance: Chance) -> Asked:
    """Short and long answers that nothing tells apart."""
    short, long = size.max_len // 16, size.max_len // 2
    answers = np.where(chance.random(size.num) < 0.5, short, long).astype(np.int32)
    return Asked(np.full(size.num, short, np.int32), answers)


def prefix_tree(size: Size, chance: Chance) -> Asked:
    """Prompts go down a tree of two children a node, to any depth, and end on their own."""
    prompts = even(chance, size.num, 1, size.max_len // 2)
    answers = heavy(chance, size.num, size.max_len // 32, size.max_len // 2)
    prefixes = [_path(chance, int(one) // BLOCK) for one in prompts]
    return Asked(prompts, answers, prefixes=prefixes)


def prefix_groups(size: Size, chance: Chance) -> Asked:
    """Five groups of prompts that begin alike for a quarter of the context."""
    shared = size.max_len // 4
    prompts = even(chance, size.num, shared, shared + size.max_len // 8)
    answers = heavy(chance, size.num, size.max_len // 32, size.max_len // 2)
    groups = chance.integers(5, size=size.num).tolist()
    return Asked(prompts, answers, prefixes=[(one,) * (shared // BLOCK) for one in groups])


def three_answers(size: Size, chance: Chance) -> Asked:
    """Three answers of each request share its prompt."""
    return Asked(*mixed(size, chance, size.num // 3), n=3)


def _path(chance: Chance, depth: int) -> tuple[int, ...]:
    """Nodes of a binary tree from the root down, numbered so that equal ones are one node."""
    node, path = 1, []
    for _ in range(chance.integers(depth, endpoint=True)):
        node = 2 * node + int(chance.integers(2))
        path.append(node)
    return tuple(path)


WORKLOADS: dict[str, Maker] = {
    "burst-500": partial(burst, num=500),
    "burst-1000": partial(burst, num=1000),
    "giants": giants,
    "to-the-limit": to_the_limit,
    "drift": drift,
    "slow-link": slow_link,
    "no-host": no_host,
    "one-context": one_context,
    "one-length": one_length,
    "two-lengths": two_lengths,
    "prefix-tree": prefix_tree,
    "prefix-groups": prefix_groups,
    "three-answers": three_answers,
}


def requests(name: str, size: Size, asked: Asked, chance: Chance) -> Workload:
    """What is asked, with its times."""
    num = asked.prompts.size
    held = (asked.prompts + asked.answers / 2) * asked.answers  # tokens, over as many steps
    pool_tokens = (asked.contexts or size.contexts) * size.max_len
    whole_s = STEP_S * asked.n * float(held.sum()) / pool_tokens
    span_s = 0.0 if asked.at_once else SPAN_SHARE * whole_s
    return Workload(
        label=f"{name}: {num} requests",
        arrival_s=np.sort(chance.uniform(0.0, span_s, num)),
        prompt_tokens=asked.prompts,
        output_tokens=asked.answers,
        slo_class=np.zeros(num, np.uint8),
        prefixes=list(asked.prefixes),
        prefix_block=BLOCK if asked.prefixes else 0,
    )


def made(name: str, size: Size, policy: str, seed: int = 0) -> Prepared:
    """A workload's scenario under a policy."""
    asked = WORKLOADS[name](size, np.random.default_rng(seed))
    profile = load_profile(PROFILE)
    num_blocks = (asked.contexts or size.contexts) * size.max_len // BLOCK
    kv_bytes = float(num_blocks * block_bytes(profile.model, BLOCK, profile.model.dtype))
    group = InstanceGroup(
        profile=PROFILE,
        kv_bytes=kv_bytes,
        host_bytes=asked.host_pools * kv_bytes,
        link_bytes_per_s=asked.link_bytes_per_s,
    )
    limits = ScenarioLimits(
        max_len=size.max_len,
        max_batch_tokens=size.max_batch_tokens,
        max_pause_s=size.max_pause_s,
        block_size=BLOCK,
        exact_max_tokens=asked.exact,
    )
    scenario = Scenario(
        workload=WorkloadSpec(name="sharegpt", rate=1.0, seed=seed),
        instance=(group,),
        n=asked.n,
        policy=policy,
        seed=seed,
        noise=False,
        limits=limits,
    )
    return prepare(scenario, requests(name, size, asked, np.random.default_rng(seed + 1)))


class Figures(NamedTuple):
    """What a policy makes of a workload."""

    tokens_per_s: float
    latency_s: float
    p99_ttft_s: float
    longest_gap_s: float
    preemptions: float  # for each answer
    most_preemptions: int
    steps: int
    unfinished: int


def figures(log: RunLog) -> Figures:
    """The figures of a run."""
    answers, seen = log.requests, measure(log.requests)
    return Figures(
        tokens_per_s(log),
        float(np.nanmean(seen.normalized_latency_s)),
        float(np.nanpercentile(seen.ttft_s, 99)),
        float(answers.gap_s.max(initial=0.0)),
        float(answers.preemptions.mean()),
        int(answers.preemptions.max()),
        log.instances[0].steps,
        int((answers.outcome != Outcome.FINISHED).sum()),
    )


def tokens_per_s(log: RunLog) -> float:
    """Throughput: output tokens over the time of the whole run."""
    return float(log.requests.output_tokens.sum()) / log.virtual_s


def one_run(job: tuple[str, str], size: Size, seed: int) -> Figures:
    """Simulate a workload under a policy."""
    name, policy = job
    return figures(run(made(name, size, policy, seed)))


def table(found: dict[str, Figures]) -> Iterator[str]:
    """A row for each policy, with ratios to that of BASE."""
    heads = "".join(f"{one:>18}" for one in ("tokens/s", "s/token", "P99 TTFT"))
    yield f"{'policy':<14}{heads}{'longest gap':>13}{'preempted':>11}{'most':>6}{'steps':>8}"
    base = found[BASE]
    for policy, one in found.items():
        ratios = "".join(
            f"{value:>10.3f}{value / of:>7.2f}x"
            for value, of in zip(one[:3], base[:3], strict=True)
        )
        rest = f"{one.longest_gap_s:>13.2f}{one.preemptions:>11.2f}{one.most_preemptions:>6}"
        more = f"  {one.unfinished} unfinished" if one.unfinished else ""
        yield f"{policy:<14}{ratios}{rest}{one.steps:>8}{more}"


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    add: Any = parser.add_argument
    add("--size", choices=SIZES, default="medium", help="default: %(default)s")
    add("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    add("--policies", default=",".join(POLICIES), help=f"and {BASE}; default: %(default)s")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--workers", type=int, help="processes; default: as many as cores")


def study(options: argparse.Namespace) -> None:
    """Print its tables."""
    names = listed(options.workloads)
    policies = list(dict.fromkeys([BASE, *listed(options.policies)]))
    for kind, asked, known in (("workload", names, WORKLOADS), ("policy", policies, POLICIES)):
        if strange := set(asked) - set(known):
            sys.exit(f"no {kind} {', '.join(sorted(strange))}: choose {', '.join(known)}")
    with ProcessPoolExecutor(options.workers) as pool:
        one = partial(one_run, size=SIZES[options.size], seed=options.seed)
        runs = pool.map(one, product(names, policies))
        for name in names:
            print(f"\n{name}")
            print("\n".join(table({policy: next(runs) for policy in policies})), flush=True)
