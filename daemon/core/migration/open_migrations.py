"""The migrations that are not over, and those that are chosen for prompts that still wait."""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from daemon.state.sequence import Sequence


@dataclass(slots=True, eq=False)
class Migration:
    """A running sequence that is to go on at another instance."""

    sequence: Sequence
    source: int
    target: int
    after_prompt: bool  # only once its prompt is computed: a handoff
    ahead: bool = True  # blocks may still be copied ahead
    sent: bool = False  # some were, so the target is fixed
    held: bool = False  # no further step takes it


class Migrations:
    """All migrations that are not over, at most one per sequence, as they were ordered."""

    def __init__(self, num_instances: int) -> None:
        self._by_sequence: dict[int, Migration] = {}
        self._by_source: list[dict[int, Migration]] = [{} for _ in range(num_instances)]
        self._by_target: defaultdict[int, dict[int, Migration]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._by_sequence)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._by_sequence

    def get(self, sequence: int) -> Migration | None:
        """The migration of a sequence, by its id."""
        return self._by_sequence.get(sequence)

    def values(self) -> Iterable[Migration]:
        """All migrations."""
        return self._by_sequence.values()

    def leaving(self, source: int) -> list[Migration]:
        """The migrations away from an instance; a copy."""
        return list(self._by_source[source].values())

    @property
    def targets(self) -> AbstractSet[int]:
        """The instances to which any sequence migrates."""
        return self._by_target.keys()

    def coming(self, target: int) -> list[Sequence]:
        """The sequences that migrate to an instance."""
        return [migration.sequence for migration in self._by_target.get(target, {}).values()]

    def add(self, migration: Migration) -> None:
        """Add a migration; its sequence has none yet."""
        self._by_sequence[migration.sequence.id] = migration
        self._by_source[migration.source][migration.sequence.id] = migration
        self._by_target[migration.target][migration.sequence.id] = migration

    def redirect(self, migration: Migration, target: int) -> None:
        """Give a migration another target."""
        self._take_from_target(migration)
        migration.target = target
        self._by_target[target][migration.sequence.id] = migration

    def pop(self, sequence: int) -> Migration | None:
        """Take out the migration of a sequence, by its id, if it has one."""
        migration = self._by_sequence.pop(sequence, None)
        if migration is not None:
            del self._by_source[migration.source][sequence]
            self._take_from_target(migration)
        return migration

    def _take_from_target(self, migration: Migration) -> None:
        there = self._by_target[migration.target]
        del there[migration.sequence.id]
        if not there:
            del self._by_target[migration.target]


class Pairs:
    """The instances of answers, chosen as their prompts arrived (Splitwise, section IV-A), until
    these are handed over; placement counts them there.
    """

    def __init__(self) -> None:
        self._target: dict[int, int] = {}
        self._coming: dict[int, dict[int, Sequence]] = {}

    def __contains__(self, target: int) -> bool:
        """Whether any answer is to be decoded at an instance."""
        return target in self._coming

    def coming(self, target: int) -> Iterable[Sequence]:
        """The prompts whose answers are to be decoded at an instance."""
        return self._coming.get(target, {}).values()

    def give(self, sequence: Sequence, target: int) -> None:
        """Choose the instance of a sequence's answer, in place of an earlier one."""
        self.pop(sequence.id)
        self._target[sequence.id] = target
        self._coming.setdefault(target, {})[sequence.id] = sequence

    def pop(self, sequence: int) -> int:
        """Take out the choice for a sequence, by its id; -1: there is none."""
        target = self._target.pop(sequence, -1)
        if target >= 0:
            there = self._coming[target]
            del there[sequence]
            if not there:
                del self._coming[target]
        return target
