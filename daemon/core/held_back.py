"""Streams that wait for their leader's prompt before they are queued: its blocks are shared."""

from daemon.state.sequence import Sequence


class HeldBack:
    """The streams that are held back, by their leader's id."""

    def __init__(self) -> None:
        self.by_leader: dict[int, list[Sequence]] = {}
        self._num = 0

    def __len__(self) -> int:
        """Streams that are held back, in all."""
        return self._num

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether it still waits for its leader's prompt."""
        leader = sequence.leader
        return leader is not None and sequence in self.by_leader.get(leader.id, ())

    def add(self, leader: Sequence, followers: list[Sequence]) -> None:
        """Hold these back until the leader's prompt is computed, or the leader has ended."""
        self.by_leader[leader.id] = followers
        self._num += len(followers)
        for follower in followers:
            follower.leader = leader

    def remove(self, sequence: Sequence) -> None:
        """Forget one that ends; KeyError if it is not held back."""
        assert sequence.leader is not None
        self.by_leader[sequence.leader.id].remove(sequence)
        self._num -= 1

    def release(self, leader: Sequence) -> list[Sequence]:
        """Those that waited for this leader; they do no longer."""
        followers = self.by_leader.pop(leader.id, [])
        self._num -= len(followers)
        return followers
