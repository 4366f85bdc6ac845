"""The lines at the top: the daemon's identity, state and figures."""

from typing import NamedTuple

from rich.text import Text

from daemon.protocol.control import Counters, Snapshot
from tui.format import count, duration, latency, percent, printable, rate, share
from tui.lines import Lines
from tui.palette import ink
from tui.rates import Rates, drafted, paused


class Sign(NamedTuple):
    """A note in the header beside the daemon's state, in the colour of that ink."""

    text: str
    colour: str


def status_look(snapshot: Snapshot) -> tuple[str, str]:
    """Sign and colour of the daemon's own state."""
    if snapshot.draining:
        return "◑", ink.warn
    return ("●", ink.good) if snapshot.ready else ("◐", ink.info)


class Header(Lines):
    """Name and state above, figures below, in a second line too where there is room; figures that
    do not fit are dropped from the right.
    """

    def __init__(self) -> None:
        super().__init__(id="header")
        self._snapshot: Snapshot | None = None
        self._rates = Rates()
        self._connected = False
        self._signs: tuple[Sign, ...] = ()

    def update_from(self, snapshot: Snapshot, rates: Rates) -> None:
        """Show this snapshot's figures."""
        self._snapshot, self._rates = snapshot, rates
        self.redraw()

    def mark(self, *, connected: bool, signs: tuple[Sign, ...]) -> None:
        """Show whether the picture is live, and the signs."""
        if (connected, signs) != (self._connected, self._signs):
            self._connected, self._signs = connected, signs
            self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """The header at the current width."""
        if self._snapshot is None:
            badge = (" llmd ", f"bold {ink.main} reverse")
            return [Text.assemble(badge, ("  connecting …", ink.muted))]
        first = _spread(self._identity(self._snapshot), self._place(self._snapshot), width)
        return [first, *_figures(self._snapshot, self._rates, width, height - 1)]

    def _identity(self, snapshot: Snapshot) -> Text:
        text = Text.assemble((" llmd ", f"bold {ink.main} reverse"), "  ", no_wrap=True)
        text.append(printable(snapshot.model, 36), f"bold {ink.text}")
        if not self._connected:
            text.append("  ✕ disconnected", ink.bad)
        else:
            sign, colour = status_look(snapshot)
            text.append(f"  {sign} {printable(snapshot.status, 28)}", colour)
        for said in self._signs:
            text.append(f"  {printable(said.text)}", f"bold {getattr(ink, said.colour)}")
        return text

    def _place(self, snapshot: Snapshot) -> list[Text]:
        return [
            Text(f"up {duration(snapshot.uptime_s)} ", ink.muted),
            Text(f"{printable(snapshot.url, 40)} ", ink.muted),
            Text(f"pid {snapshot.pid} ", ink.faint),
            Text(f"v{printable(snapshot.version, 12)} ", ink.faint),
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


def _drafts(counters: Counters) -> str:
    """Tokens of each step in which a sequence drafted, and the share of drafts accepted."""
    accepted, tokens = drafted(counters)
    return f"{tokens:.1f} a step, {percent(accepted).strip()}"


def _figures(snapshot: Snapshot, rates: Rates, width: int, height: int) -> list[Text]:
    """The figures that fit into `height` lines."""
    counters = snapshot.counters
    cached = share(counters.cached_tokens, counters.prompt_tokens)
    num_predicted = counters.prediction_count
    error = counters.median_error
    figures = [
        (count(snapshot.running), "running", ink.good),
        (count(snapshot.waiting), "waiting", ink.warn if snapshot.waiting else ink.muted),
        (rate(rates.output_tokens_per_s), "tok/s", ink.main),
        (latency(rates.ttft_s), "TTFT", ink.info),
        (latency(rates.tpot_s), "TPOT", ink.good),
        *([(_drafts(counters), "drafts", ink.good)] if counters.drafts else []),
        *([(latency(rates.pause_s), "pause", ink.warn)] if paused(counters)[0] else []),
        (rate(rates.prompt_tokens_per_s), "prompt tok/s", ink.text),
        (percent(cached).strip(), "prefix hits", ink.text),
        (count(counters.finished), "finished", ink.text),
        (count(counters.rejected), "rejected", ink.warn if counters.rejected else ink.muted),
        (count(counters.failed), "failed", ink.bad if counters.failed else ink.muted),
        (count(counters.preemptions), "preemptions", ink.text),
        (count(counters.swaps_out), "swapped out", ink.text if counters.swaps_out else ink.muted),
        (percent(error).strip() if num_predicted else "–", "prediction error", ink.text),
    ]
    lines = [Text(no_wrap=True, end="")]
    for value, label, colour in figures:
        part = Text.assemble(" ", (value, f"bold {colour}"), (f" {label} ", ink.muted))
        separator = Text(" │", ink.faint) if lines[-1] else Text()
        if lines[-1].cell_len + separator.cell_len + part.cell_len > width:
            if len(lines) >= height:
                break
            lines.append(Text(no_wrap=True, end=""))
            separator = Text()
        lines[-1].append_text(separator).append_text(part)
    return lines[:height]
