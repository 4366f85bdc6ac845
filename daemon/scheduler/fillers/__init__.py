"""The fillers of steps, by the name that policies use."""

from daemon.scheduler.fillers.base import Filler
from daemon.scheduler.fillers.decoupled import Decoupled, Grouped
from daemon.scheduler.fillers.mixed import Mixed
from daemon.scheduler.fillers.nested import Nested
from daemon.scheduler.fillers.ordered import Ordered
from daemon.scheduler.fillers.packed import PackedByPeak
from daemon.scheduler.fillers.prompts_alone import PromptsAlone
from daemon.scheduler.fillers.prompts_first import PromptsFirst
from daemon.scheduler.policies.base import (
    DECOUPLED,
    GROUPED,
    MIXED,
    NESTED,
    ORDERED,
    PACKED,
    PROMPTS_ALONE,
    PROMPTS_FIRST,
)

FILLERS: dict[str, type[Filler]] = {
    MIXED: Mixed,
    PROMPTS_ALONE: PromptsAlone,
    PROMPTS_FIRST: PromptsFirst,
    DECOUPLED: Decoupled,
    GROUPED: Grouped,
    ORDERED: Ordered,
    NESTED: Nested,
    PACKED: PackedByPeak,
}
