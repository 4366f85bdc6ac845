"""Wakes: the times at which instances' next steps should be planned.

So an event asks only the instances that it touches for a step.
"""

from heapq import heappop, heappush

NEVER, AT_ONCE = float("inf"), float("-inf")


class Wakes:
    """A heap of (time to plan its next step, instance), soonest first; and the instances to ask at
    the next event, whenever that is.

    A time that is set anew leaves its old entry behind, which is dropped when it comes up.
    """

    def __init__(self, num_instances: int) -> None:
        self._due_s = [NEVER] * num_instances
        self._heap: list[tuple[float, int]] = []
        self._asked: list[int] = []  # at the next event

    def set(self, instance: int, due_s: float) -> None:
        """Set the time to plan an instance's next step, in place of an earlier one."""
        if due_s != self._due_s[instance]:
            self._due_s[instance] = due_s
            if due_s == AT_ONCE:
                self._asked.append(instance)
            elif due_s != NEVER:
                heappush(self._heap, (due_s, instance))

    def ask_again(self, instance: int) -> None:
        """Ask an instance without a plan again at the next event: time alone may change that."""
        self._asked.append(instance)

    @property
    def any_asked(self) -> bool:
        """Whether the next event asks an instance, whichever it is."""
        return bool(self._asked)

    def take(self, now: float) -> list[int]:
        """Take the instances whose steps should be planned by now, in order, each once."""
        heap, due_s = self._heap, self._due_s
        if not self._asked and not (heap and heap[0][0] <= now):
            return []
        taken, self._asked = self._asked, []
        for instance in taken:
            due_s[instance] = NEVER
        while heap and heap[0][0] <= now:
            time_s, instance = heappop(heap)
            if time_s == due_s[instance]:
                due_s[instance] = NEVER
                taken.append(instance)
        return sorted(set(taken)) if len(taken) > 1 else taken

    @property
    def next_s(self) -> float:
        """The soonest time that `take` left."""
        heap, due_s = self._heap, self._due_s
        while heap and heap[0][0] != due_s[heap[0][1]]:
            heappop(heap)
        return heap[0][0] if heap else NEVER
