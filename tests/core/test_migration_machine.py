"""Random moves, flips, drains, links that break and blocks that arrive wrong, with tiny pools.

The Driver checks both ledgers after every event, and every token against the truth.
"""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role
from daemon.state.transfer_mode import HANDOFF_MODES
from tests.core import drafting
from tests.core.driver import Driver, configured
from tests.core.test_machine import indices, prompts
from tests.soak import SOAK, tries

roles = st.sampled_from(list(Role))


class MigrationMachine(RuleBasedStateMachine):
    """The Driver checks; this only chooses."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        given=st.lists(roles, min_size=2, max_size=3),
        depth=st.integers(0, 2),
        num_blocks=st.integers(12, 30),
        max_running=st.integers(1, 5),
        budget=st.integers(4, 40),
        prefix_cache=st.sampled_from([True, True, False]),
        step_s=st.sampled_from([0.001, 0.03]),
        swap=st.sampled_from(SWAP_MODES),
        num_host_blocks=st.sampled_from([0, 6, 40]),
        max_pause_s=st.sampled_from([0.05, 4.0]),
        linked=st.sampled_from([True, True, True, False]),
        handoff=st.sampled_from(HANDOFF_MODES),
    )
    def begin(
        self,
        policy: str,
        given: list[Role],
        depth: int,
        num_blocks: int,
        max_running: int,
        budget: int,
        prefix_cache: bool,
        step_s: float,
        swap: str,
        num_host_blocks: int,
        max_pause_s: float,
        linked: bool,
        handoff: str,
    ) -> None:
        config = configured(
            policy,
            len(given),
            depth=depth,
            max_running=max_running,
            max_batch_tokens=budget,
            prefill_chunk=budget,
            prefix_cache=prefix_cache,
            max_len=48,
            swap=swap,
            starve_s=0.005,
            max_pause_s=max_pause_s,
            handoff=handoff,
        )
        instances = tuple(
            msgspec.structs.replace(one, role=role)
            for one, role in zip(config.instances, given, strict=True)
        )
        config = msgspec.structs.replace(config, instances=instances)
        self.num_blocks = num_blocks
        self.driver = Driver(config, num_blocks, step_s, num_host_blocks, 1e-6)
        if linked:
            self.driver.link_all()

    def _instance(self, index: int) -> int:
        return index % len(self.driver.config.instances)

    @rule(prompt=prompts, max_tokens=st.integers(1, 12), n=st.sampled_from([1, 1, 2, 3]))
    def arrive(self, prompt: list[int], max_tokens: int, n: int) -> None:
        self.driver.arrive(prompt[:36], max_tokens, n)

    @rule(
        index=indices,
        times=st.integers(1, 5),
        fails=st.integers(0, 60),
        drafts=st.none() | st.randoms(use_true_random=False),
    )
    def answer(self, index: int, times: int, fails: int, drafts: random.Random | None) -> None:
        for _ in range(times):
            busy = [i for i, worker in self.driver.workers.items() if worker.pending]
            if busy:
                one, failing = busy[index % len(busy)], frozenset({fails} if fails < 4 else ())
                if drafts is None:
                    self.driver.answer(one, fails=failing)
                else:
                    drafting.answer(self.driver, one, drafts.choice, fails=failing)

    @rule(index=indices)
    def copied(self, index: int) -> None:
        self.driver.copied(self._instance(index))

    @precondition(lambda self: self.driver.sendings)
    @rule(index=indices, right=st.sampled_from([1 << 30, 1 << 30, 1 << 30, 0, 1, 2]))
    def land(self, index: int, right: int) -> None:
        number = sorted(self.driver.sendings)[index % len(self.driver.sendings)]
        ends = sorted(self.driver.sendings[number].ends)
        self.driver.land(number, ends[index // 7 % len(ends)], right)

    @precondition(lambda self: self.driver.alive)
    @rule(index=indices, to=indices)
    def move(self, index: int, to: int) -> None:
        alive = sorted(self.driver.alive)
        self.driver.move(alive[index % len(alive)], self._instance(to))

    @rule(index=indices, role=roles)
    def flip(self, index: int, role: Role) -> None:
        self.driver.flip(self._instance(index), role)

    @rule(index=indices, drained=st.booleans())
    def drain_one(self, index: int, drained: bool) -> None:
        if drained:
            self.driver.drain_one(self._instance(index))
        else:
            self.driver.resume_one(self._instance(index))

    @precondition(lambda self: self.driver.links)
    @rule(index=indices)
    def break_link(self, index: int) -> None:
        if index % 3 == 0:
            source, target = way = sorted(self.driver.links)[index // 3 % len(self.driver.links)]
            link = self.driver.links.pop(way)
            for end in (source, target) if index % 2 else (target, source):
                self.driver.break_link(source, target, end, link)

    @rule()
    def link(self) -> None:
        self.driver.link_all()

    @precondition(lambda self: self.driver.alive)
    @rule(index=indices)
    def seal(self, index: int) -> None:
        alive = sorted(self.driver.alive)
        self.driver.seal(alive[index % len(alive)])

    @precondition(lambda self: self.driver.alive)
    @rule(index=indices)
    def finish(self, index: int) -> None:
        alive = sorted(self.driver.alive)
        self.driver.finish(alive[index % len(alive)])

    @precondition(lambda self: self.driver.requests)
    @rule(index=indices)
    def abort(self, index: int) -> None:
        self.driver.abort(index % self.driver.requests)

    @rule(index=indices, blamed=st.booleans(), late=st.booleans())
    def lose(self, index: int, blamed: bool, late: bool) -> None:
        if index % 3 == 0:
            self.driver.lose(self._instance(index // 3), blamed, late)

    @rule()
    def fall(self) -> None:
        self.driver.fall()

    @rule(linked=st.booleans())
    def ready(self, linked: bool) -> None:
        for instance in range(len(self.driver.config.instances)):
            if instance not in self.driver.workers:
                self.driver.ready(instance, self.num_blocks)
        if linked:
            self.driver.link_all()

    @rule()
    def tick(self) -> None:
        self.driver.tick()

    def teardown(self) -> None:
        """Whatever happened: what can be finished finishes, and then nothing is left."""
        if not hasattr(self, "driver"):
            return
        self.ready(linked=True)
        self.driver.settle()
        assert not self.driver.alive, "sequences that nobody will ever finish"
        self.driver.check_nothing_left()


MigrationMachine.TestCase.settings = settings(
    max_examples=tries(50, 5_000),
    stateful_step_count=tries(50, 80),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not SOAK,
)
TestMigrationMachine = pytest.mark.timeout(tries(120, 3600))(MigrationMachine.TestCase)
