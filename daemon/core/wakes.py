"""Whose next step should be planned when, so that an event asks only the instances it touches."""

from heapq import heappop, heappush

NEVER, AT_ONCE = float("inf"), float("-inf")


class Wakes:
    """A heap of (when its next step should be planned, instance), the soonest first.

    A time that was set anew leaves its old entry behind, which is dropped when it comes up.
    """

    def __init__(self, num_instances: int) -> None:
        self._due_s = [NEVER] * num_instances
        self._heap: list[tuple[float, int]] = []
        self._restless: list[int] = []

    def set(self, instance: int, due_s: float) -> None:
        """The instance's next step should be planned then, not when it was said before."""
        if due_s != self._due_s[instance]:
            self._due_s[instance] = due_s
            if due_s != NEVER:
                heappush(self._heap, (due_s, instance))

    def ask_again(self, instance: int) -> None:
        """The instance had nothing to plan; the time alone may change that by the next event."""
        self._restless.append(instance)

    def take(self, now: float) -> list[int]:
        """The instances whose steps should be planned by now, in order; each is taken once."""
        heap, due_s = self._heap, self._due_s
        if not self._restless and not (heap and heap[0][0] <= now):
            return []
        taken, self._restless = self._restless, []
        while heap and heap[0][0] <= now:
            time_s, instance = heappop(heap)
            if time_s == due_s[instance]:
                due_s[instance] = NEVER
                taken.append(instance)
        return sorted(set(taken)) if len(taken) > 1 else taken

    @property
    def next_s(self) -> float:
        """When the soonest of those that `take` left is due."""
        heap, due_s = self._heap, self._due_s
        while heap and heap[0][0] != due_s[heap[0][1]]:
            heappop(heap)
        return heap[0][0] if heap else NEVER
