"""One instance: its facts, its GPU, and its last minutes."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

from msgspec import UNSET
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from daemon.protocol.control import AskOwners, Closer, GpuStatus, InstanceStatus, ReservedStatus
from tui.blocks import BlockMap, experts_held
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
"""Number of newest steps shown."""


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
        """This instance."""
        return self.instance

    def questions(self, watched: Watched) -> list[Closer]:
        """Ask for the owners of the blocks, if the mouse is over them."""
        return [AskOwners(self.instance)] if self.blocks.hovered() else []

    def show(self, watched: Watched) -> None:
        """Show the instance as it is now."""
        instance, snapshot = watched.instance(self.instance), watched.snapshot
        if instance is None or snapshot is None:
            self.facts.update(Text("there is no such instance any more", ink.muted))
            return
        gpu = next(islice(snapshot.gpus, self.instance, None), None)
        links = [*watched.history.links(), *[LinkRates()] * (self.instance + 1)]
        link = links[self.instance]
        self.facts.border_title = printable(instance.name)
        self.facts.update(
            facts(
                [
                    *_what(instance),
                    *_does(instance),
                    *_swaps(instance, link, packed=snapshot.compress),
                    *_gpu(instance, gpu),
                    *kernels(instance),
                ]
            )
        )
        gauges = watched.history.gauges(self.instance)
        self.step.update_from(
            [g.step_s for g in gauges], instance.step_s if instance.steps else None
        )
        self.running.update_from([float(g.running) for g in gauges], float(instance.running))
        used = share(instance.kv_used, instance.kv_blocks)
        self.used.update_from([g.kv_used for g in gauges], used)
        self.link.update_from(watched.history.busy(self.instance), link.busy)
        self.blocks.update_from([(self.instance, instance)], watched.owners)


Facts = Sequence[tuple[str, str | Text]]


def _what(instance: InstanceStatus) -> Facts:
    sign, colour = state_look(instance.state)
    stage = f"  {printable(instance.load_stage)} {percent(instance.load_fraction).strip()}"
    drained = ", drained" if instance.drained else ""
    state = Text(
        f"{sign} {instance.state}{stage if instance.state == 'loading' else drained}", colour
    )
    return [
        ("state", state),
        ("role", Text(instance.role, role_colour(instance.role))),
        *([("pool", Text(instance.pool, role_colour(instance.pool)))] if instance.pool else []),
        ("device", printable(instance.device)),
        *([("node", printable(instance.node))] if instance.node else []),
        *_experts(instance),
        ("policy", printable(instance.policy)),
        ("", ""),
    ]


def _experts(instance: InstanceStatus) -> Facts:
    """The places of a mixture's experts, where some are in host memory."""
    return [] if instance.experts is UNSET else [("experts", experts_held(instance.experts))]


def _does(instance: InstanceStatus) -> Facts:
    used = share(instance.kv_used, instance.kv_blocks)
    in_bytes = size(instance.kv_blocks * instance.kv_block_bytes)
    reserved = f", {instance.kv_reserved} reserved" if instance.kv_reserved else ""
    slowest = f", p99 {latency(instance.step_p99_s)}" if instance.step_p99_s else ""
    levels = (
        f"{level_bars(instance.levels)} {level_counts(instance.levels)}"
        if any(instance.levels)
        else "–"
    )
    budget = f"/{instance.batch_budget}" if instance.batch_budget else ""
    return [
        ("sequences", f"{instance.running} run, {instance.waiting} wait"),
        *([("decodes", printable(instance.decode_admission))] if instance.decode_admission else []),
        ("levels", levels if instance.levels else "the policy has none"),
        ("batch", f"{instance.batch_rows} sequences, {instance.batch_tokens}{budget} tokens"),
        *([("step use", step_use(instance, _STEPS))] if budget and instance.newest_tokens else []),
        ("step", f"{latency(instance.step_s if instance.steps else None)}{slowest}"),
        ("steps", f"{count(instance.steps)} so far, {instance.steps_in_flight} in flight"),
        ("", ""),
        ("KV pool", f"{bar(used, 10)} {percent(used)} of {in_bytes}"),
        *([("written", percent(instance.kv_written).strip())] if instance.kv_written else []),
        ("blocks", f"{instance.kv_blocks} of {size(instance.kv_block_bytes)}"),
        ("held", f"{instance.kv_held}, {instance.kv_fenced} fenced{reserved}"),
        ("cached", f"{instance.kv_cached}, {instance.kv_free} free"),
        *(
            [("remote KV", f"{instance.remote_kvs}, {instance.remote_kv_blocks} blocks")]
            if instance.remote_kvs
            else []
        ),
        *_kept(instance.reserved),
        ("", ""),
    ]


def _kept(reserved: ReservedStatus | None) -> Facts:
    """The sequences waiting with KV, and the reservations lent or expected."""
    if reserved is None:
        return []
    pairs = [("ready", f"{reserved.ready} wait, hold {reserved.ready_blocks} blocks")]
    if reserved.lending is not None:
        pairs.append(("lent", loan_words(reserved)))
    if reserved.peak is not None:
        pairs.append(("peak", peak_words(reserved.peak)))
    return pairs


def _swaps(instance: InstanceStatus, link: LinkRates, *, packed: bool) -> Facts:
    if not instance.host_blocks:
        return [("swap", f"{printable(instance.swap)}, no host pool"), ("", "")]
    used = share(instance.host_held, instance.host_blocks)
    out_s, in_s = link.out_bytes_per_s, link.in_bytes_per_s
    now = "–" if out_s is None or in_s is None else f"{size(out_s)}/s out, {size(in_s)}/s in"
    ever_out, ever_in = (
        instance.out_blocks * instance.kv_block_bytes,
        instance.in_blocks * instance.kv_block_bytes,
    )
    return [
        ("swap", printable(instance.swap)),
        (
            "host pool",
            f"{bar(used, 10)} {percent(used)} of {instance.host_blocks}{' in 8 bits' * packed}",
        ),
        ("link", f"{_share(link.busy)} busy"),
        ("now", now),
        ("so far", f"{size(ever_out)} out, {size(ever_in)} in"),
        ("ahead", f"{instance.ahead_blocks} blocks uploaded, {instance.ahead_used} used"),
        ("bursts", f"{instance.burst_blocks} blocks kept ready"),
        ("", ""),
    ]


def _gpu(instance: InstanceStatus, gpu: GpuStatus | None) -> Facts:
    """The instance's card; a CPU has none."""
    if gpu is None and instance.device == "cpu":
        return []
    if gpu is None:
        return [("GPU", "none that can be asked")]
    words = [("GPU", printable(gpu.name or "unnamed"))]
    return [*words, *[("", text) for text in gpu_words(gpu)]]


def kernels(instance: InstanceStatus) -> Facts:
    """The kernels that torch replaces since they are not trusted, and the reasons."""
    if not instance.fallbacks:
        return []
    said = [
        (printable(family), Text(printable(why), ink.warn)) for family, why in instance.fallbacks
    ]
    return [("", ""), ("kernels", Text("torch does what these should:", ink.warn)), *said]
