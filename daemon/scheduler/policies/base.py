"""The base of policies: an order, and a few traits of filling steps."""

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
"""EcoServe's fillers: two queues, and the additions of its ablations."""

NOTHING, LIMIT, PREDICTION = "nothing", "limit", "prediction"
"""Ways to reserve memory: nothing, so that a block is free until a token needs it; prompt and
max_tokens at admission; or an answer's predicted room, when it begins."""


class Policy:
    """First come first served, prompts in chunks mixed with decodes; others differ in a line.

    A policy never allocates and holds no state of its own: it ranks sequences and says what a
    step may contain. Equal ranks go by arrival. The sequence of highest rank is the victim when
    memory runs out. Speeds it asks of `step_time`, a fitted model that errs.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    """One line for help texts."""
    filler: ClassVar[str] = MIXED
    """The filler of steps: a key of `daemon.scheduler.fillers.FILLERS`."""
    whole_prompts: ClassVar[bool] = False
    """A prompt is split only if it is the first of its step and exceeds the budget left to it."""
    reserves: ClassVar[str] = NOTHING
    """NOTHING, LIMIT or PREDICTION. A sequence within its reservation is not preempted for a block.
    """
    gang: ClassVar[bool] = False
    """Whether no sequence joins once a running one has more than its first token."""
    batch_tokens: ClassVar[int] = 512
    """The token budget of a step, where the configuration leaves it to the policy."""
    fills_device: ClassVar[bool] = False
    """Whether prompts then fill a step only up to the target forward size of its device, if less.
    """
    swap: ClassVar[str] = RECOMPUTE
    """The swap mode of victims, where the configuration leaves it to the policy."""
    displaces: ClassVar[bool] = False
    """Whether a waiting sequence may preempt a running one that ranks behind it."""
    counts_down: ClassVar[bool] = False
    """Whether ranks are seconds left: running sequences come nearer to their end, so they keep
    their rank at admission plus the time of it."""
    reviews: ClassVar[bool] = False
    """Whether sequences have a `review_at`."""
    promotes: ClassVar[bool] = False
    """Whether sequences that starve are promoted."""
    promoted_share: ClassVar[float] = 1 / 3
    """The share of blocks for promoted sequences. FastServe's promotion alone can thrash: under
    overload all sequences starve, and all memory goes to moving them in and out."""
    nears: ClassVar[bool] = False
    """Whether a level is a range of the time left until it has to begin (`nearing.py`)."""
    learns: ClassVar[bool] = False
    """Whether ranks are costs, by the `outlook` of seen lengths; costs age (`ageing.py`)."""
    paces: ClassVar[bool] = False
    """Whether pauses of streams are bounded (`pace.py`)."""
    num_levels: ClassVar[int] = 0
    """Queues; 0: the policy has none."""

    @classmethod
    def budget(cls, asked_tokens: int) -> int:
        """The token budget of a step: the configured one, or the policy's own where that is 0."""
        return asked_tokens or cls.batch_tokens

    def enter(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Initialise a sequence's fields, when it arrives or when this policy is set."""
        sequence.level = 0
        sequence.promoted = False
        sequence.review_at = NEVER

    def on_prediction(self, sequence: Sequence) -> None:
        """Note a sequence's new prediction; its rank is asked for afterwards."""

    def rank(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The sequence's number in the order; lower runs first."""
        return 0.0

    def begin_by_s(self, sequence: Sequence, step_time: StepTimeModel) -> float:
        """The time by which a sequence has to begin, where levels are ranges of the time left."""
        return 0.0

    def review(self, sequence: Sequence, num_output_tokens: int, step_time: StepTimeModel) -> None:
        """Review a sequence that reached `review_at`; its rank is asked for afterwards."""

    def patience_s(self, sequence: Sequence, starve_s: float, step_time: StepTimeModel) -> float:
        """The longest wait of a sequence before it starves, where the policy promotes."""
        return starve_s

    def promote(self, sequence: Sequence, step_time: StepTimeModel) -> None:
        """Let a sequence that starves run soon."""
