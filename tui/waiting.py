"""The waiting queue: the longest waiting sequences, and the lengths of their prompts."""

from rich.text import Text

from daemon.protocol.control import SequenceStatus, Snapshot
from tui.format import bar, count, duration, share
from tui.lines import Lines
from tui.palette import drawn, ink, state_look

_FIXED_CELLS = 30


class WaitingLines(Lines):
    """Waiting sequences, the longest waiting first, with their prompts' lengths as bars."""

    def __init__(self) -> None:
        super().__init__(id="waiting")
        self.border_title = "waiting queue"
        self._queue: list[SequenceStatus] = []
        self._total = 0

    def update_from(self, snapshot: Snapshot) -> None:
        """Show the queue of this snapshot."""
        waiting = [s for s in snapshot.sequences if s.state in ("waiting", "preempted")]
        self._queue = sorted(waiting, key=lambda s: -s.age_s)
        self._total = max(snapshot.waiting, len(waiting))
        oldest = f" · oldest {duration(self._queue[0].age_s)}" if self._queue else ""
        ready = sum(
            instance.reserved.ready
            for instance in snapshot.instances
            if instance.reserved is not None
        )
        with_kv = f" · {count(ready)} ready" if ready else ""
        subtitle = f"{count(self._total)} waiting{with_kv}{oldest}"
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """As many as fit, then the number of further ones."""
        if not self._queue:
            return [Text("nothing waits", style=ink.faint)]
        room = height if self._total <= height else max(1, height - 1)
        longest = max(s.num_prompt_tokens for s in self._queue)
        lines = [_line(s, longest, width) for s in self._queue[:room]]
        if self._total > room:
            lines.append(Text(f"and {count(self._total - room)} more", style=ink.muted))
        return lines[:height]


def _line(sequence: SequenceStatus, longest: int, width: int) -> Text:
    sign, colour = state_look(sequence.state)
    line = Text(no_wrap=True, end="")
    line.append(f"{sign} ", colour)
    line.append(f"{sequence.sequence:<7}", ink.muted)
    line.append(f"{duration(sequence.age_s):>7} ", ink.text)
    room = max(0, width - _FIXED_CELLS)
    line.append(" ")
    line.append_text(drawn(bar(share(sequence.num_prompt_tokens, longest), room), ink.muted))
    return line.append(f"{count(sequence.num_prompt_tokens):>7} tok", ink.text)
