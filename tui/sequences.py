"""The sequences table: each token stream, how far it is and what it holds."""

from daemon.control.protocol import SequenceStatus, Snapshot
from tui.format import bar, count, duration, printable, share
from tui.keyed_table import Cell, Column, KeyedTable
from tui.ordering import SORTS, arranged, next_sort
from tui.palette import AMBER, BLUE, FAINT, MUTED, TEXT, VIOLET, state_look

_FIGURES, _PAIR = 7, 11  # cells of a prompt's length, and of output/max, beside their bars


def _id(sequence: SequenceStatus, width: int) -> Cell:
    """The id; where it is too long, its end, which is what tells neighbours apart."""
    text = str(sequence.sequence)
    return Cell(text if len(text) <= width else "…" + text[1 - width :], MUTED)


def _state(sequence: SequenceStatus, _width: int) -> Cell:
    sign, colour = state_look(sequence.state)
    return Cell(f"{sign} {sequence.state}", colour)


def _prompt(sequence: SequenceStatus, width: int) -> Cell:
    """A bar of the prompt's tokens computed so far, then the prompt's length."""
    computed = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    done = share(computed, sequence.num_prompt_tokens)
    text = f"{bar(done, width - _FIGURES)} {count(sequence.num_prompt_tokens):>{_FIGURES - 1}}"
    return Cell(text, BLUE if 0 < done < 1 else MUTED)


def _output(sequence: SequenceStatus, width: int) -> Cell:
    """Output tokens of the most that may come, with a bar where there is room."""
    figures = f"{sequence.num_output_tokens}/{sequence.max_tokens}"
    room = width - _PAIR - 1
    if room >= 4:
        done = share(sequence.num_output_tokens, sequence.max_tokens)
        figures = f"{bar(done, room)} {figures:>{_PAIR}}"
    return Cell(figures, TEXT if sequence.num_output_tokens else MUTED)


def _preemptions(sequence: SequenceStatus, _width: int) -> Cell:
    return Cell(str(sequence.preemptions), AMBER if sequence.preemptions else FAINT)


def _priority(sequence: SequenceStatus, _width: int) -> Cell:
    priority = sequence.priority
    return Cell(f"{priority:+}" if priority else "0", VIOLET if priority else FAINT)


def _instance(sequence: SequenceStatus, _width: int) -> Cell:
    return Cell(printable(sequence.instance) or "–", TEXT if sequence.instance else FAINT)


COLUMNS: list[Column[SequenceStatus]] = [
    Column("id", "id", 6, _id, grow=4),
    Column("state", "state", 11, _state, left=True, grow=3),
    Column("instance", "inst", 6, _instance, left=True, rank=2, grow=4),
    Column("age", "age", 6, lambda s, _: Cell(duration(s.age_s))),
    Column("prompt", "prompt", 12, _prompt, grow=10),
    Column("output", "output/max", 11, _output, grow=30),
    Column("blocks", "blocks", 6, lambda s, _: Cell(count(s.num_blocks))),
    Column("priority", "prio", 4, _priority),
    Column("preemptions", "pre", 3, _preemptions),
]


class SequencesTable(KeyedTable[SequenceStatus]):
    """One row a sequence, sorted and filtered as the person at the keys wants."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="sequences")
        self.border_title = "sequences"
        self.sort_name = next(iter(SORTS))
        self.filter_text = ""
        self._snapshot: Snapshot | None = None

    def update_from(self, snapshot: Snapshot) -> None:
        """Show this snapshot's sequences."""
        self._snapshot = snapshot
        self._reshow()

    def cycle_sort(self) -> None:
        """Sort by the next order."""
        self.sort_name = next_sort(self.sort_name)
        self._reshow()

    def filter_by(self, text: str) -> None:
        """Show only those that match each word of `text`."""
        self.filter_text = text
        self._reshow()

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
