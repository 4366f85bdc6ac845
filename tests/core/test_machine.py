"""A random client, random workers, and the Core between them."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.policies import POLICIES
from tests.core import drafting
from tests.core.driver import Driver, configured
from tests.soak import SOAK, tries

PROMPTS = [[(7 * p + i // 5) % 11 for i in range(60)] for p in range(3)]

LAYERS = [
    ((0,), 0),
    ((0, 7), 0),
    ((0, 0, 5, 5, 18), 0),
    ((9,), 0),
    ((0,), 3),
    ((0, 0), 2),
    ((), 4),
    ((0, 7), 3),
]
"""Windows of groups of layers, in tokens of blocks of 4, and pages of a sequence's states."""

prompts = st.builds(
    lambda pool, length, tail: PROMPTS[pool][:length] + tail,
    st.integers(0, 2),
    st.integers(0, 40),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
indices = st.integers(0, 10**6)
own_limits = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from(sorted(POLICIES)),
        "max_running": st.integers(1, 6),
        "max_batch_tokens": st.integers(4, 40),
        "depth": st.integers(1, 3),
        "swap": st.sampled_from(SWAP_MODES),
        "decode_admission": st.sampled_from(DECODE_ADMISSIONS),
    },
)
"""What one of the instances says of its own."""


class CoreMachine(RuleBasedStateMachine):
    """The Driver checks; this only chooses."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        depth=st.integers(0, 3),
        num_blocks=st.integers(8, 40),
        max_running=st.integers(1, 6),
        budget=st.integers(4, 40),
        chunk=st.integers(1, 20),
        instances=st.integers(1, 2),
        stages=st.sampled_from([1, 1, 2, 3]),
        max_waiting=st.integers(1, 12),
        prefix_cache=st.booleans(),
        step_s=st.sampled_from([0.001, 0.004, 0.03]),
        swap=st.sampled_from(SWAP_MODES),
        decode_admission=st.sampled_from(DECODE_ADMISSIONS),
        num_host_blocks=st.sampled_from([0, 6, 40, 200]),
        copy_block_s=st.sampled_from([1e-6, 1e-3]),
        max_pause_s=st.sampled_from([0.004, 0.05, 4.0]),
        most_times=st.sampled_from([1, 3, 8]),
        layers=st.sampled_from(LAYERS),
        own=own_limits,
    )
    def begin(
        self,
        policy: str,
        depth: int,
        num_blocks: int,
        max_running: int,
        budget: int,
        chunk: int,
        instances: int,
        stages: int,
        max_waiting: int,
        prefix_cache: bool,
        step_s: float,
        swap: str,
        decode_admission: str,
        num_host_blocks: int,
        copy_block_s: float,
        max_pause_s: float,
        most_times: int,
        layers: tuple[tuple[int, ...], int],
        own: dict[str, Any],
    ) -> None:
        config = configured(
            policy,
            instances,
            stages,
            depth=depth,
            max_running=max_running,
            max_batch_tokens=budget,
            prefill_chunk=chunk,
            max_waiting=max_waiting,
            prefix_cache=prefix_cache,
            max_len=96,
            swap=swap,
            decode_admission=decode_admission,
            starve_s=0.005,
            max_pause_s=max_pause_s,
        )
        *others, last = config.instances
        last = msgspec.structs.replace(last, **own)
        config = msgspec.structs.replace(config, instances=(*others, last))
        self.num_blocks = num_blocks
        windows, state_pages = layers
        num_pages = num_blocks * max(1, len(windows)) + state_pages
        parts = num_pages, step_s, num_host_blocks, copy_block_s
        # Where tokens take time, preempted sequences of several kinds of layers are copied out.
        token_s = 1e-4 if any(windows) or state_pages else 0.0
        self.driver = Driver(
            config,
            *parts,
            token_s=token_s,
            most_times=most_times,
            windows=windows,
            state_pages=state_pages,
        )

    def _pick(self, options: list[int], index: int) -> int:
        return options[index % len(options)]

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 30),
        n=st.integers(1, 4),
        priority=st.integers(-2, 2),
    )
    def arrive(self, prompt: list[int], max_tokens: int, n: int, priority: int) -> None:
        self.driver.arrive(prompt, max_tokens, n, priority)

    @rule(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=4), index=indices)
    def foretell_those_that_run(self, lengths: list[int], index: int) -> None:
        """Several are seated by one plan, and what was predicted of them comes after that."""
        requests = [self.driver.arrive([1, 2], 30) for _ in lengths]
        self.driver.answer(index % len(self.driver.config.instances))
        for request, length in zip(requests, lengths, strict=True):
            self.driver.predict(request, length)

    @rule(
        index=indices,
        stops=st.frozensets(st.integers(0, 5), max_size=1),
        fails=st.integers(0, 40),
        times=st.integers(1, 6),
        drafts=st.none() | st.randoms(use_true_random=False),
    )
    def answer(
        self,
        index: int,
        stops: frozenset[int],
        fails: int,
        times: int,
        drafts: random.Random | None,
    ) -> None:
        for _ in range(times):
            busy = [i for i, worker in self.driver.workers.items() if worker.pending]
            if busy:
                ends = stops, frozenset({fails} if fails < 6 else ())
                one = self._pick(busy, index)
                if drafts is None or self.driver.state_pages:  # states are not cut back
                    self.driver.answer(one, *ends)
                else:
                    drafting.answer(self.driver, one, drafts.choice, *ends)

    @rule(index=indices)
    def copied(self, index: int) -> None:
        self.driver.copied(index % len(self.driver.config.instances))

    @rule(policy=st.sampled_from(sorted(POLICIES)), seldom=st.integers(0, 7), index=indices)
    def choose(self, policy: str, seldom: int, index: int) -> None:
        if seldom == 0:
            self.driver.choose(policy, index % (len(self.driver.config.instances) + 1) - 1)

    @rule(tokens=st.integers(0, 40), seldom=st.integers(0, 7), index=indices)
    def choose_budget(self, tokens: int, seldom: int, index: int) -> None:
        if seldom == 0:
            instance = index % (len(self.driver.config.instances) + 1) - 1
            self.driver.choose_budget(tokens, instance)

    @precondition(lambda self: self.driver.alive)
    @rule(index=indices)
    def seal(self, index: int) -> None:
        self.driver.seal(self._pick(sorted(self.driver.alive), index))

    @precondition(lambda self: self.driver.alive)
    @rule(index=indices)
    def finish(self, index: int) -> None:
        self.driver.finish(self._pick(sorted(self.driver.alive), index))

    @precondition(lambda self: self.driver.requests)
    @rule(index=indices, num_tokens=st.integers(1, 40))
    def predict(self, index: int, num_tokens: int) -> None:
        self.driver.predict(self.driver.requests - index % 5, num_tokens)

    @precondition(lambda self: self.driver.requests)
    @rule(index=indices)
    def abort(self, index: int) -> None:
        self.driver.abort(index % self.driver.requests)

    @rule(index=indices, blamed=st.booleans())
    def lose(self, index: int, blamed: bool) -> None:
        if index % 4 == 0:
            self.driver.lose(index // 4 % len(self.driver.config.instances), blamed)

    @rule(fewer=st.integers(0, 3))
    def ready(self, fewer: int) -> None:
        for instance in range(len(self.driver.config.instances)):
            if instance not in self.driver.workers:
                self.driver.ready(instance, self.num_blocks - fewer)

    @rule()
    def tick(self) -> None:
        self.driver.tick()

    @rule(index=indices)
    def drain(self, index: int) -> None:
        if index % 16 == 0:
            self.driver.drain()
        elif index % 16 == 1:
            self.driver.resume()
        elif index % 16 == 2:
            self.driver.reconfigure(1 + index // 16 % 12, 0.005 if index % 3 else 0.3)

    def teardown(self) -> None:
        """Whatever happened: what can be finished finishes, and then nothing is left."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        self.ready(fewer=0)
        driver.settle()
        assert not driver.alive, "sequences that nobody will ever finish"
        driver.check_nothing_left()


CoreMachine.TestCase.settings = settings(
    max_examples=tries(40, 5_000),
    stateful_step_count=tries(40, 80),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not SOAK,
)
TestCoreMachine = pytest.mark.timeout(tries(120, 3600))(CoreMachine.TestCase)
