"""The two lines at the top: which daemon this is, and how it does."""

from rich.text import Text
from textual.widget import Widget

from daemon.control.protocol import Snapshot
from tui.format import count, duration, latency, percent, printable, rate, share
from tui.palette import AMBER, BLUE, FAINT, GREEN, MUTED, RED, TEAL, TEXT
from tui.rates import Rates


def status_look(snapshot: Snapshot) -> tuple[str, str]:
    """Sign and colour of the daemon's own state."""
    if snapshot.draining:
        return "◑", AMBER
    return ("●", GREEN) if snapshot.ready else ("◐", BLUE)


class Header(Widget):
    """Name and state above, figures below; what does not fit is left out from the right."""

    def __init__(self) -> None:
        super().__init__(id="header")
        self._snapshot: Snapshot | None = None
        self._rates = Rates()
        self._connected = False
        self._paused = False

    def update_from(self, snapshot: Snapshot, rates: Rates) -> None:
        """Show this snapshot's figures."""
        self._snapshot, self._rates = snapshot, rates
        self.refresh()

    def mark(self, *, connected: bool, paused: bool) -> None:
        """Say whether what is shown is live."""
        if (connected, paused) != (self._connected, self._paused):
            self._connected, self._paused = connected, paused
            self.refresh()

    def render(self) -> Text:
        """Both lines, at the current width."""
        if self._snapshot is None:
            return Text.assemble((" llmd ", f"bold {TEAL} reverse"), ("  connecting …", MUTED))
        width = self.size.width
        first = _spread(self._identity(self._snapshot), self._place(self._snapshot), width)
        return Text("\n").join([first, _figures(self._snapshot, self._rates, width)])

    def _identity(self, snapshot: Snapshot) -> Text:
        text = Text.assemble((" llmd ", f"bold {TEAL} reverse"), "  ", no_wrap=True)
        text.append(printable(snapshot.model, 36), f"bold {TEXT}")
        if not self._connected:
            text.append("  ✕ disconnected", RED)
        else:
            sign, colour = status_look(snapshot)
            text.append(f"  {sign} {printable(snapshot.status, 28)}", colour)
        if self._paused:
            text.append("  ‖ paused", AMBER)
        return text

    def _place(self, snapshot: Snapshot) -> list[Text]:
        return [
            Text(f"up {duration(snapshot.uptime_s)} ", MUTED),
            Text(f"{printable(snapshot.url, 40)} ", MUTED),
            Text(f"pid {snapshot.pid} ", FAINT),
            Text(f"v{printable(snapshot.version, 12)} ", FAINT),
        ]


def _spread(left: Text, right: list[Text], width: int) -> Text:
    """`left`, and at the right edge as many of `right` as fit, the first always outermost."""
    room = width - left.cell_len - 2
    kept: list[Text] = []
    for part in right:
        if part.cell_len + 1 > room:
            break
        room -= part.cell_len + 1
        kept.insert(0, part)
    joined = Text(" ").join(kept)
    left.append(" " * max(1, width - left.cell_len - joined.cell_len))
    return left.append_text(joined)


def _figures(snapshot: Snapshot, rates: Rates, width: int) -> Text:
    counters = snapshot.counters
    cached = share(counters.cached_tokens, counters.prompt_tokens)
    foretold = counters.prediction_count
    error = share(counters.prediction_error_sum, foretold)
    figures = [
        (count(snapshot.running), "running", GREEN),
        (count(snapshot.waiting), "waiting", AMBER if snapshot.waiting else MUTED),
        (rate(rates.output_tokens_per_s), "tok/s", TEAL),
        (latency(rates.ttft_s), "TTFT", BLUE),
        (rate(rates.prompt_tokens_per_s), "prompt tok/s", TEXT),
        (percent(cached).strip(), "prefix hits", TEXT),
        (count(counters.finished), "finished", TEXT),
        (count(counters.rejected), "rejected", AMBER if counters.rejected else MUTED),
        (count(counters.failed), "failed", RED if counters.failed else MUTED),
        (count(counters.preemptions), "preemptions", TEXT),
        (count(counters.swaps_out), "swapped out", TEXT if counters.swaps_out else MUTED),
        (percent(error).strip() if foretold else "–", "prediction error", TEXT),
    ]
    line = Text(no_wrap=True, end="")
    for value, label, colour in figures:
        part = Text.assemble(" ", (value, f"bold {colour}"), (f" {label} ", MUTED))
        separator = Text(" │", FAINT) if line else Text()
        if line.cell_len + separator.cell_len + part.cell_len > width:
            break
        line.append_text(separator).append_text(part)
    return line
