"""One instance: what it is and does, its GPU, and how it did over the last minutes."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from daemon.protocol.control import AskOwners, Closer, GpuStatus, InstanceStatus, ReservedStatus
from tui.blocks import BlockMap
from tui.chart import Chart
from tui.facts import facts
from tui.format import bar, count, latency, percent, printable, rate, share, size
from tui.instances import gpu_words
from tui.palette import ink, role_colour, state_look
from tui.queues import level_bars, level_counts
from tui.rates import LinkRates
from tui.reserved import loan_words, peak_words, step_use
from tui.screens.live import LiveScreen
from tui.watched import Watched

_STEPS = 20
"""Characters of the newest steps."""


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value).strip()


class InstanceScreen(LiveScreen):
    """Facts at the left, charts and its blocks at the right."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "app.flip", "flip"),
        Binding("d", "app.drain", "drain"),
    ]

    def __init__(self, instance: int) -> None:
        super().__init__()
        self.instance = instance
        self.facts = Static(id="facts")
        self.facts.border_title = "instance"
        self.step = Chart("step", "info", latency)
        self.running = Chart("running", "good", rate)
        self.used = Chart("KV used", "main", _share)
        self.link = Chart("swap link", "extra", _share)
        self.blocks = BlockMap()

    def parts(self) -> Iterable[Widget]:
        """Facts, charts, blocks."""
        yield self.facts
        charts = Container(self.step, self.running, self.used, self.link, id="grid")
        yield Container(charts, self.blocks, id="side")

    def chosen_instance(self) -> int | None:
        """This one."""
        return self.instance

    def questions(self, watched: Watched) -> list[Closer]:
        """Whose the blocks under the mouse are."""
        return [AskOwners(self.instance)] if self.blocks.hovered() else []

    def show(self, watched: Watched) -> None:
        """All of it as it is now."""
        one, snapshot = watched.instance(self.instance), watched.snapshot
        if one is None or snapshot is None:
            self.facts.update(Text("there is no such instance any more", ink.muted))
            return
        gpu = next(islice(snapshot.gpus, self.instance, None), None)
        links = [*watched.history.links(), *[LinkRates()] * (self.instance + 1)]
        link = links[self.instance]
        self.facts.border_title = printable(one.name)
        self.facts.update(
            facts([*_what(one), *_does(one), *_swaps(one, link), *_gpu(one, gpu), *kernels(one)])
        )
        gauges = watched.history.gauges(self.instance)
        self.step.update_from([g.step_s for g in gauges], one.step_s if one.steps else None)
        self.running.update_from([float(g.running) for g in gauges], float(one.running))
        used = share(one.kv_used, one.kv_blocks)
        self.used.update_from([g.kv_used for g in gauges], used)
        self.link.update_from(watched.history.busy(self.instance), link.busy)
        self.blocks.update_from([(self.instance, one)], watched.owners)


Facts = Sequence[tuple[str, str | Text]]


def _what(one: InstanceStatus) -> Facts:
    sign, colour = state_look(one.state)
    stage = f"  {printable(one.load_stage)} {percent(one.load_fraction).strip()}"
    drained = ", drained" if one.drained else ""
    state = Text(f"{sign} {one.state}{stage if one.state == 'loading' else drained}", colour)
    return [
        ("state", state),
        ("role", Text(one.role, role_colour(one.role))),
        ("device", printable(one.device)),
        ("policy", printable(one.policy)),
        ("", ""),
    ]


def _does(one: InstanceStatus) -> Facts:
    used = share(one.kv_used, one.kv_blocks)
    in_bytes = size(one.kv_blocks * one.kv_block_bytes)
    reserved = f", {one.kv_reserved} reserved" if one.kv_reserved else ""
    slowest = f", p99 {latency(one.step_p99_s)}" if one.step_p99_s else ""
    levels = f"{level_bars(one.levels)} {level_counts(one.levels)}" if any(one.levels) else "–"
    budget = f"/{one.batch_budget}" if one.batch_budget else ""
    return [
        ("sequences", f"{one.running} run, {one.waiting} wait"),
        ("levels", levels if one.levels else "the policy has none"),
        ("batch", f"{one.batch_rows} sequences, {one.batch_tokens}{budget} tokens"),
        *([("step use", step_use(one, _STEPS))] if budget and one.newest_tokens else []),
        ("step", f"{latency(one.step_s if one.steps else None)}{slowest}"),
        ("steps", f"{count(one.steps)} so far, {one.steps_in_flight} in flight"),
        ("", ""),
        ("KV pool", f"{bar(used, 10)} {percent(used)} of {in_bytes}"),
        *([("written", percent(one.kv_written).strip())] if one.kv_written else []),
        ("blocks", f"{one.kv_blocks} of {size(one.kv_block_bytes)}"),
        ("held", f"{one.kv_held}, {one.kv_fenced} fenced{reserved}"),
        ("cached", f"{one.kv_cached}, {one.kv_free} free"),
        *([("parcels", f"{one.parcels}, {one.parcel_blocks} blocks")] if one.parcels else []),
        *_kept(one.reserved),
        ("", ""),
    ]


def _kept(reserved: ReservedStatus | None) -> Facts:
    """Who waits with KV, and what of the reservations is lent or expected."""
    if reserved is None:
        return []
    pairs = [("ready", f"{reserved.ready} wait, hold {reserved.ready_blocks} blocks")]
    if reserved.lending is not None:
        pairs.append(("lent", loan_words(reserved)))
    if reserved.peak is not None:
        pairs.append(("peak", peak_words(reserved.peak)))
    return pairs


def _swaps(one: InstanceStatus, link: LinkRates) -> Facts:
    if not one.host_blocks:
        return [("swap", f"{printable(one.swap)}, no host pool"), ("", "")]
    used = share(one.host_held, one.host_blocks)
    out_s, in_s = link.out_bytes_per_s, link.in_bytes_per_s
    now = "–" if out_s is None or in_s is None else f"{size(out_s)}/s out, {size(in_s)}/s in"
    ever_out, ever_in = one.out_blocks * one.kv_block_bytes, one.in_blocks * one.kv_block_bytes
    return [
        ("swap", printable(one.swap)),
        ("host pool", f"{bar(used, 10)} {percent(used)} of {one.host_blocks}"),
        ("link", f"{_share(link.busy)} busy"),
        ("now", now),
        ("so far", f"{size(ever_out)} out, {size(ever_in)} in"),
        ("", ""),
    ]


def _gpu(one: InstanceStatus, gpu: GpuStatus | None) -> Facts:
    """Its card; a CPU has none."""
    if gpu is None and one.device == "cpu":
        return []
    if gpu is None:
        return [("GPU", "none that can be asked")]
    words = [("GPU", printable(gpu.name or "unnamed"))]
    return [*words, *[("", one) for one in gpu_words(gpu)]]


def kernels(one: InstanceStatus) -> Facts:
    """What torch computes in place of kernels that are not trusted, and why."""
    if not one.fallbacks:
        return []
    said = [(printable(family), Text(printable(why), ink.warn)) for family, why in one.fallbacks]
    return [("", ""), ("kernels", Text("torch does what these should:", ink.warn)), *said]
