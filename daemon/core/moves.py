"""Moves: the running sequences that are to go on elsewhere, by where they are and where they go."""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from daemon.state.sequence import Sequence


@dataclass(slots=True, eq=False)
class Move:
    """A running sequence that is to go on elsewhere."""

    sequence: Sequence
    source: int
    target: int
    after_prompt: bool  # only once its prompt is computed: it is handed off
    ahead: bool = True  # blocks may still be copied ahead
    sent: bool = False  # some were, so that the target is the target
    held: bool = False  # no further step takes it


class Moves:
    """All moves that are not over, at most one of each sequence, in the order they were ordered."""

    def __init__(self, num_instances: int) -> None:
        self._by_sequence: dict[int, Move] = {}
        self._by_source: list[dict[int, Move]] = [{} for _ in range(num_instances)]
        self._by_target: defaultdict[int, dict[int, Move]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._by_sequence)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._by_sequence

    def get(self, sequence: int) -> Move | None:
        """The move of a sequence, by its id."""
        return self._by_sequence.get(sequence)

    def values(self) -> Iterable[Move]:
        """All of them."""
        return self._by_sequence.values()

    def leaving(self, source: int) -> list[Move]:
        """Those that leave an instance; a copy."""
        return list(self._by_source[source].values())

    @property
    def targets(self) -> AbstractSet[int]:
        """The instances at which any are to go on."""
        return self._by_target.keys()

    def coming(self, target: int) -> list[Sequence]:
        """The sequences that are to go on at an instance."""
        return [move.sequence for move in self._by_target.get(target, {}).values()]

    def add(self, move: Move) -> None:
        """One more; its sequence has none."""
        self._by_sequence[move.sequence.id] = move
        self._by_source[move.source][move.sequence.id] = move
        self._by_target[move.target][move.sequence.id] = move

    def redirect(self, move: Move, target: int) -> None:
        """It is to go on at another instance than it was to."""
        self._take_from_target(move)
        move.target = target
        self._by_target[target][move.sequence.id] = move

    def pop(self, sequence: int) -> Move | None:
        """Take out the move of a sequence, by its id, if it has one."""
        move = self._by_sequence.pop(sequence, None)
        if move is not None:
            del self._by_source[move.source][sequence]
            self._take_from_target(move)
        return move

    def _take_from_target(self, move: Move) -> None:
        there = self._by_target[move.target]
        del there[move.sequence.id]
        if not there:
            del self._by_target[move.target]
