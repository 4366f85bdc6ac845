"""The base of policies: an order, and a few traits of how steps are filled."""

from typing import ClassVar

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import RECOMPUTE
from daemon.state.sequence import NEVER, Sequence

MIXED = "mixed"
PROMPTS_ALONE = "prompts alone"
PROMPTS_FIRST = "prompts first"
DECOUPLED, GROUPED, ORDERED, NESTED, PACKED = (
    "decoupled",
    "decoupled, grouped",
    "decoupled, grouped, ordered",
    "decoupled, grouped, ordered, nested",
    "decoupled, grouped, ordered, packed",
)
"""EcoServe's: two queues, and what each of its ablations adds."""

NOTHING, LIMIT, PREDICTION = "nothing", "limit", "prediction"
"""What is reserved of memory: nothing, so that a block is anybody's until a token needs it; prompt
and max_tokens at admission; or what an answer is predicted to take, when it begins."""


class Policy:
    """First come first served, prompts in chunks mixed with decodes; others differ in a line.

    A policy never allocates and holds no state of its own: it ranks sequences and says what a
    step may be made of. Equal ranks go by arrival. The sequence of highest rank is the victim when
    memory runs out. What it must know of speed, it asks `step_time`, a fitted model that errs.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    """One line for help texts."""
    filler: ClassVar[str] = MIXED
    """How steps are filled: a key of `daemon.scheduler.fillers.FILLERS`."""
    whole_prompts: ClassVar[bool] = False
    """A prompt is split only if it is the first of its step and exceeds the budget left to it."""
    reserves: ClassVar[str] = NOTHING
    """NOTHING, LIMIT or PREDICTION. Nobody within a reservation is preempted for a block."""
    gang: ClassVar[bool] = False
    """No sequence joins once one that runs has got more than its first token."""
    batch_tokens: ClassVar[int] = 512
    """Token budget of a step, where the configuration leaves it to the policy."""
    fills_device: ClassVar[bool] = False
    """Then also: prompts fill a step up to the target forward size of its device, if less."""
    swap: ClassVar[str] = RECOMPUTE
    """What becomes of victims, where the configuration leaves it to the policy."""
    displaces: ClassVar[bool] = False
    """A sequence that waits may take the place of one that runs and ranks behind it."""
    counts_down: ClassVar[bool] = False
    """Ranks are seconds that are left: those that run come nearer to their end, and keep the rank
    that they had when they were admitted plus the time of that moment."""
    reviews: ClassVar[bool] = False
    """Sequences have a `review_at`."""
    promotes: ClassVar[bool] = False
    """Sequences that starve are promoted."""
    nears: ClassVar[bool] = False
    """A sequence's level is a range of the time left until it has to begin (`nearing.py`)."""
    learns: ClassVar[bool] = False
    """Ranks are costs, by the `outlook` that lengths seen give; costs age (`ageing.py`)."""
    paces: ClassVar[bool] = False
    """Streams that have begun keep flowing (`pace.py`)."""
    num_levels: ClassVar[int] = 0
    """Queues; 0: the policy has none."""

    @classmethod
    def budget(cls, asked_tokens: int) -> int:
        """Token budget of a step: what was asked for, or the policy's own where that is 0."""
        return asked_tokens or cls.batch_tokens

    def enter(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Initialise a sequence's fields, when it arrives or when this policy is set."""
        sequence.level = 0
        sequence.promoted = False
        sequence.review_at = NEVER

    def on_prediction(self, sequence: Sequence) -> None:
        """Take note of a sequence's new prediction; its rank is asked for afterwards."""

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The sequence's number in the order; lower runs first."""
        return 0.0

    def begin_by_s(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """When a sequence has to begin, where levels are ranges of the time until then."""
        return 0.0

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Look again at a sequence that reached `review_at`; its rank is asked for afterwards."""

    def patience_s(self, sequence: Sequence, starve_s: float, step_time: StepTimeModel) -> float:
        """How long a sequence may wait before it starves, where the policy promotes."""
        return starve_s

    def promote(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Let a sequence that starves run soon."""
