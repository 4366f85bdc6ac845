"""A real engine worker under measurement: one plan at a time, timed on both ends of the channel."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from daemon.lab.profiles.errors import ProfileError
from daemon.protocol.worker import Load, OperatorTimes, Plan, Ready, Reply, TimeOperators
from daemon.supervisor.worker import WorkerHooks, WorkerProcess


class PlanTiming(NamedTuple):
    """The time of one plan, in seconds."""

    elapsed_s: float  # as the worker reports and the journal records
    round_trip_s: float  # from sending the plan to reading its reply


class MeasuredWorker:
    """`async with MeasuredWorker(load) as worker`: started like the daemon's, and ended after.

    Raises ProfileError if it cannot load or dies.
    """

    def __init__(self, load: Load, others: Sequence[Load] = ()) -> None:
        """`others`: of further ranks."""
        hooks = WorkerHooks(
            loading=lambda _instance, _progress: None,
            ready=self._settle,
            reply=self._settle,
            operators=self._settle,
            lost=self._lost,
            hopeless=lambda _instance, why: self._fail(why),
        )
        self._worker = WorkerProcess(0, "profile", load, hooks, other_loads=others)
        self._answer: asyncio.Future[Ready | Reply | OperatorTimes] | None = None
        self._life: asyncio.Task[None] | None = None
        self._fault = ""
        self._measured = False

    async def __aenter__(self) -> Self:
        self._answer = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._worker.run())
        try:
            ready = await self._answer
        except BaseException:
            await self._end()
            raise
        assert isinstance(ready, Ready)
        self.ready, self._measured = ready, True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @property
    def pid(self) -> int:
        """The process under measurement."""
        return self._worker.pid

    async def run(self, plan: Plan) -> PlanTiming:
        """Have a plan computed, with no other in flight."""
        if self._fault:
            raise ProfileError(self._fault)
        self._answer = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._worker.send(plan)
        reply = await self._answer
        round_trip_s = time.perf_counter() - began
        if not isinstance(reply, Reply) or reply.step != plan.batch.step:
            raise ProfileError("the worker answered something else than the plan")
        return PlanTiming(reply.elapsed_s, round_trip_s)

    async def operators(self, plan: Plan, repeats: int) -> OperatorTimes:
        """Have the operators of a plan's step timed alone, with no plan in flight."""
        if self._fault:
            raise ProfileError(self._fault)
        self._answer = asyncio.get_running_loop().create_future()
        self._worker.time_operators(TimeOperators(plan, repeats))
        answer = await self._answer
        if not isinstance(answer, OperatorTimes) or answer.step != plan.batch.step:
            raise ProfileError("the worker answered something else than operators' times")
        return answer

    async def _end(self) -> None:
        await self._worker.close()
        if self._life is not None:
            await self._life

    def _settle(self, _instance: int, answer: Ready | Reply | OperatorTimes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _lost(self, _instance: int, _blamed: bool) -> None:
        if self._measured:  # else `hopeless` follows with the reason
            self._fail("the worker died while it was measured")

    def _fail(self, why: str) -> None:
        self._fault = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ProfileError(why))
