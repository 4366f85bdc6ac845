"""Pauses of running sequences behind prompts of others."""

from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.scheduler import Scheduler
from daemon.state.pause import MIN_PAUSE_S, PAUSE_TIMES


class PromptDelay:
    """Measures pauses behind prompts: steps with prompt tokens, and the next step with decodes."""

    def __init__(self) -> None:
        self.since_s = -1.0  # start of the first of the newest steps without decodes; -1: none
        self.since_step = 0  # number of that step

    def answered(
        self, flown: InFlightStep, began_s: float, now: float, scheduler: Scheduler
    ) -> tuple[float, int] | None:
        """(pause, number of sequences) until this answer; their columns count it too.

        The step began at `began_s`; its answer has not been taken by the scheduler yet.
        """
        work, table = flown.work, scheduler.slots
        table.first_step[flown.firsts] = flown.step
        waited = self.since_s >= 0.0
        if not work.num_decodes:
            if not waited:
                self.since_s, self.since_step = began_s, flown.step
            return None
        since_s = self.since_s if waited else began_s
        since_step = self.since_step if waited else flown.step
        self.since_s = -1.0
        if now - since_s <= MIN_PAUSE_S:
            return None
        alone_s = scheduler.step_time.decode_s(work.num_decodes, work.decode_context)
        took_s = now - since_s - (work.times - 1) * alone_s  # until their first token came
        if took_s <= max(MIN_PAUSE_S, PAUSE_TIMES * alone_s):
            return None
        rows = flown.slots[flown.alive(table)]
        rows = rows[table.first_step[rows] < since_step]  # the others began in the meantime
        pause_s = took_s - alone_s
        table.behind_prompts_s[rows] += pause_s
        return (pause_s, rows.size) if rows.size else None
