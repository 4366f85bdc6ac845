"""The sequences table: each token stream, its progress and its blocks."""

from rich.text import Text

from daemon.protocol.control import SequenceStatus, Snapshot
from tui.columns import Cell, Column
from tui.format import bar, count, duration, ending, printable, share
from tui.keyed_table import KeyedTable
from tui.ordering import SORTS, arranged, next_sort
from tui.palette import RESIDENCY_LOOK, ink, residency_look, state_look

_TITLE = "sequences"
_FIGURES, _PAIR = 7, 11  # cells of a prompt's length, and of output/max, beside their bars


def _id(sequence: SequenceStatus, width: int) -> Cell:
    return Cell(ending(str(sequence.sequence), width), ink.muted)


def _state(sequence: SequenceStatus, _width: int) -> Cell:
    sign, colour = state_look(sequence.state)
    return Cell(f"{sign} {sequence.state}", colour)


def _prompt(sequence: SequenceStatus, width: int) -> Cell:
    """A bar of the prompt's tokens computed so far, then the prompt's length."""
    computed = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    done = share(computed, sequence.num_prompt_tokens)
    text = f"{bar(done, width - _FIGURES)} {count(sequence.num_prompt_tokens):>{_FIGURES - 1}}"
    return Cell(text, ink.info if 0 < done < 1 else ink.muted)


def _output(sequence: SequenceStatus, width: int) -> Cell:
    """Output tokens of the most that may come, with a bar where there is room."""
    figures = f"{sequence.num_output_tokens}/{sequence.max_tokens}"
    room = width - _PAIR - 1
    if room >= 4:
        done = share(sequence.num_output_tokens, sequence.max_tokens)
        figures = f"{bar(done, room)} {figures:>{_PAIR}}"
    return Cell(figures, ink.text if sequence.num_output_tokens else ink.muted)


def predicted(sequence: SequenceStatus) -> str:
    """The predicted output tokens, marked where the answer is longer; "" without a prediction."""
    if sequence.predicted_tokens < 0:
        return ""
    return f"{sequence.predicted_tokens}{'!' if exceeded(sequence) else ''}"


def exceeded(sequence: SequenceStatus) -> bool:
    """Whether the answer is already longer than predicted."""
    return 0 <= sequence.predicted_tokens < sequence.num_output_tokens


def _predicted(sequence: SequenceStatus, width: int) -> Cell:
    """Output tokens of those predicted; the prediction alone where there is little room."""
    if sequence.predicted_tokens < 0:
        return Cell("–", ink.faint)
    pair = f"{sequence.num_output_tokens}/{predicted(sequence)}"
    text = pair if width >= _PAIR else predicted(sequence)
    return Cell(text, ink.warn if exceeded(sequence) else ink.muted)


def _level(sequence: SequenceStatus, _width: int) -> Cell:
    return Cell(str(sequence.level), ink.muted if sequence.level else ink.text)


def _blocks(sequence: SequenceStatus, width: int) -> Cell:
    """The place and number of its blocks; copied/held where the host has copies."""
    device, host = sequence.num_blocks, sequence.num_host_blocks
    held = device or host
    if not sequence.residency:
        return Cell(count(held), ink.text if held else ink.faint)
    sign, colour = residency_look(sequence.residency)
    pair = f"{sign} {host}/{device}"
    copied = device and host and len(pair) <= width
    return Cell(pair if copied else f"{sign} {count(held)}", colour)


def _preemptions(sequence: SequenceStatus, _width: int) -> Cell:
    return Cell(str(sequence.preemptions), ink.warn if sequence.preemptions else ink.faint)


def _priority(sequence: SequenceStatus, _width: int) -> Cell:
    priority = sequence.priority
    return Cell(f"{priority:+}" if priority else "0", ink.extra if priority else ink.faint)


def _instance(sequence: SequenceStatus, _width: int) -> Cell:
    return Cell(printable(sequence.instance) or "–", ink.text if sequence.instance else ink.faint)


def _request(sequence: SequenceStatus, width: int) -> Cell:
    """The client's own id of the request, from X-Request-Id."""
    return Cell(ending(printable(sequence.request_id, 200), width) or "–", ink.muted)


def _key(sequence: SequenceStatus, width: int) -> Cell:
    return Cell(printable(sequence.key, width) or "–", ink.muted)


COLUMNS: list[Column[SequenceStatus]] = [
    Column("id", "id", 6, _id, grow=4),
    Column("state", "state", 11, _state, left=True, grow=3),
    Column("instance", "inst", 6, _instance, left=True, rank=1, grow=4),
    Column("request", "request", 8, _request, left=True, rank=3, grow=28),
    Column("key", "key", 6, _key, left=True, rank=2, grow=10),
    Column("age", "age", 6, lambda s, _: Cell(duration(s.age_s))),
    Column("prompt", "prompt", 10, _prompt, grow=12),
    Column("output", "output/max", 11, _output, grow=30),
    Column("predicted", "pred", 6, _predicted, grow=5),
    Column("level", "lv", 2, _level),
    Column("blocks", "blocks", 8, _blocks, grow=2),
    Column("priority", "prio", 4, _priority, rank=5),
    Column("preemptions", "pre", 3, _preemptions, rank=4),
]


def residency_legend() -> Text:
    """Each place where a sequence's blocks can be, with its sign."""
    legend = Text()
    for place in RESIDENCY_LOOK:
        sign, colour = residency_look(place)
        legend.append(f"  {sign} ", colour).append(place, ink.muted)
    return legend


def columns_without_news(snapshot: Snapshot) -> frozenset[str]:
    """The columns with the same value for every sequence: one instance, no keys, no levels, no
    predictions.
    """
    predicts = snapshot.counters.prediction_count or any(
        sequence.predicted_tokens >= 0 for sequence in snapshot.sequences
    )
    empty: set[str] = set() if predicts else {"predicted"}
    if not any(instance.levels for instance in snapshot.instances):
        empty.add("level")
    if len(snapshot.instances) == 1:
        empty.add("instance")
    if not any(sequence.request_id for sequence in snapshot.sequences):
        empty.add("request")
    if not any(sequence.key for sequence in snapshot.sequences):
        empty.add("key")
    return frozenset(empty)


class SequencesTable(KeyedTable[SequenceStatus]):
    """One row per sequence, sorted and filtered as chosen."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="sequences")
        self.border_title = _TITLE
        self.sort_name = next(iter(SORTS))
        self.filter_text = ""
        self._snapshot: Snapshot | None = None
        self._legend_shown = False

    def update_from(self, snapshot: Snapshot) -> None:
        """Show this snapshot's sequences."""
        self._snapshot = snapshot
        self.hide(columns_without_news(snapshot))
        self._show_legend(any(instance.host_blocks for instance in snapshot.instances))
        self._reshow()

    def cycle_sort(self) -> None:
        """Sort by the next order."""
        self.sort_by(next_sort(self.sort_name))

    def sort_by(self, name: str) -> None:
        """Sort by this order of SORTS."""
        self.sort_name = name
        self._reshow()

    def filter_by(self, text: str) -> None:
        """Show only the sequences that match each word of `text`."""
        self.filter_text = text
        self._reshow()

    def _show_legend(self, wanted: bool) -> None:
        """Put the legend into the border, where blocks can be elsewhere than on the device."""
        if wanted != self._legend_shown:
            self._legend_shown = wanted
            self.border_title = Text(_TITLE).append(residency_legend()) if wanted else _TITLE

    def _reshow(self) -> None:
        if self._snapshot is None:
            return
        shown = arranged(self._snapshot.sequences, self.sort_name, self.filter_text)
        self.show([(str(sequence.sequence), sequence) for sequence in shown])
        total = self._snapshot.running + self._snapshot.waiting
        filtered = f"filter: {printable(self.filter_text, 24)} · " if self.filter_text else ""
        subtitle = f"{filtered}{self.sort_name} · {len(shown)} of {total}"
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle.replace("[", "(")
