"""The planner process: it tells why it cannot plan, and ends with its keeper."""

import asyncio
import os
from pathlib import Path

from daemon.protocol.plan import PlanStatus
from daemon.supervisor.planner import PlannerProcess


async def test_a_planner_without_a_daemon_says_so_and_ends_when_closed(tmp_path: Path) -> None:
    plans: asyncio.Queue[PlanStatus] = asyncio.Queue()
    arguments = [
        *("--socket", str(tmp_path / "llmd.sock"), "--journal", str(tmp_path)),
        *("--profile", "opt-13b@a100-80g", "--period-s", "40"),
        *("--slo-ttft", "1", "--slo-tpot", "0.1"),
    ]
    process = PlannerProcess(arguments, plans.put_nowait)
    running = asyncio.create_task(process.run())
    try:
        first = await asyncio.wait_for(plans.get(), 60)
        assert "no such socket" in first.note and not first.settings
        pid = process.pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    finally:
        await process.close()
        await asyncio.wait_for(running, 10)
    assert process.pid == 0 and not Path(f"/proc/{pid}").exists()
    assert plans.get_nowait() == PlanStatus()  # nothing drives any more
