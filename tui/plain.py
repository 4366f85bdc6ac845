"""One frame as plain text: for pipes, logs and eyes without colour."""

from collections.abc import Sequence

from msgspec import UNSET

from daemon.protocol.control import (
    WATCHED,
    Cause,
    InstanceStatus,
    SequenceStatus,
    Snapshot,
)
from tui.blocks import experts_held, kinds_held, snapshots
from tui.deadlines import due_line, due_rows
from tui.format import (
    BAR_EMPTY,
    BAR_FULL,
    BAR_HALF,
    bar,
    bubble_words,
    count,
    duration,
    latency,
    percent,
    printable,
    share,
    size,
)
from tui.instances import gpu_words
from tui.moves import TURN, flip_line, in_flight, transfer_line
from tui.queues import has_queues, level_counts
from tui.rates import drafted, paused
from tui.reserved import loan_words, peak_words, queue_words
from tui.sequences import predicted
from tui.story import cause_word

LISTED_SEQUENCES = 40
_ASCII_BAR = str.maketrans(BAR_FULL + BAR_HALF + BAR_EMPTY, "##.")
_ASCII_MOVE = _ASCII_BAR | str.maketrans({"→": "->", "…": "...", "·": ";", TURN: "flip"})
_MOVE_CELLS = 96
_LEFT_COLUMNS = {"INSTANCE", "ROLE", "DEVICE", "STATE", "KV USED"}
_LEFT_COLUMNS |= {"POLICY", "SWAP", "HOST USED", "SEQUENCES BY LEVEL"}


def frame(snapshot: Snapshot) -> str:
    """The whole frame, without a newline at its end."""
    parts = [_head(snapshot), _instances(snapshot.instances)]
    if any(has_queues(instance) for instance in snapshot.instances):
        parts.append(_queues(snapshot))
    if snapshot.transfers or snapshot.flips:
        parts.append(_moves(snapshot))
    if snapshot.sequences:
        parts.append(_sequences(snapshot))
    return "\n\n".join(parts)


def _head(snapshot: Snapshot) -> str:
    counters = snapshot.counters
    ttft_s = counters.ttft_sum_s / counters.ttft_count if counters.ttft_count else None
    tpot_s = counters.tpot_sum_s / counters.tpot_count if counters.tpot_count else None
    means = f"TTFT mean {latency(ttft_s)}, TPOT mean {latency(tpot_s)}"
    per_s = share(counters.output_tokens, snapshot.uptime_s)
    pairs = [
        ("model", f"{printable(snapshot.model)}  ({printable(snapshot.root)})"),
        ("status", f"{printable(snapshot.status)}, up {duration(snapshot.uptime_s)}"),
        ("api", printable(snapshot.url)),
        ("sequences", f"{snapshot.running} running, {snapshot.waiting} waiting"),
        (
            "requests",
            f"{count(counters.requests)} arrived, {count(counters.finished)} finished, "
            f"{count(counters.aborted)} aborted, {count(counters.rejected)} rejected, "
            f"{count(counters.failed)} failed",
        ),
        (
            "tokens",
            f"{count(counters.prompt_tokens)} prompt "
            f"({percent(share(counters.cached_tokens, counters.prompt_tokens)).strip()} cached), "
            f"{count(counters.output_tokens)} output",
        ),
        ("since start", f"{means}, {count(per_s)} output tok/s"),
        *_when_any(snapshot),
        *_roles(snapshot),
        *_plan(snapshot),
        *_room(snapshot),
        *_gpus(snapshot),
        *(("deadlines", due_line(row)) for row in due_rows(snapshot, {})),
        *_kept(snapshot.instances),
        *_fallbacks(snapshot.instances),
    ]
    title = f"llmd {printable(snapshot.version)}, pid {snapshot.pid}"
    return "\n".join([title, *(f"  {name:<12}{value}" for name, value in pairs)])


def _when_any(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Preemptions, predictions and the like, where there were any."""
    counters, predictor = snapshot.counters, snapshot.predictor
    pairs = []
    if predictor.asks:
        took = latency(share(predictor.took_sum_s, predictor.answers))
        asked = f"{count(predictor.asks)} asks, {count(predictor.dropped)} dropped"
        state = "up" if predictor.up else "down"
        pairs.append(("predictor", f"{printable(predictor.kind)}, {state}; {asked}, {took} each"))
    if counters.preemptions:
        swaps = f"{count(counters.swaps_out)} swapped out, {count(counters.swaps_in)} back in"
        pairs.append(("preempted", f"{count(counters.preemptions)} times; {swaps}"))
    if counters.drafts:
        share_of, tokens = drafted(counters)
        of = f"{count(counters.accepted_tokens)} of {count(counters.draft_tokens)} accepted"
        pairs.append(("drafts", f"{of} ({percent(share_of).strip()}), {tokens:.1f} tokens a step"))
    num_pauses, paused_s = paused(counters)
    if num_pauses:
        mean = latency(paused_s / num_pauses)
        why = ", ".join(
            f"{count(pauses.count)} {cause_word(cause)}"
            for cause, pauses in zip(Cause, counters.pauses, strict=False)
            if pauses.count
        )
        pairs.append(("paused", f"{count(num_pauses)} times, {mean} in the mean; {why}"))
    if counters.prediction_count:
        error = percent(counters.median_error).strip()
        near = percent(counters.predictions_near / counters.prediction_count).strip()
        finished = f"{count(counters.prediction_count)} finished with one"
        said = f"{finished}, off by {error} in the median, {near} within a factor of two"
        pairs.append(("predictions", said))
    return pairs


def _roles(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The choice of the automatic roles, and its reason; nothing where they are off."""
    roles = snapshot.roles
    if roles.mode not in WATCHED:
        return []
    why = printable(roles.decision, 120)
    return [("roles", f"{printable(roles.present)}: {why}" if why else printable(roles.present))]


def _plan(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The self-driving plan, its prediction and its truth; nothing where nothing drives."""
    return [("plan", printable(words, 200))] if (words := snapshot.plan.words) else []


def _room(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The placement, and what decides on room for decodes and in host memory."""
    several = len(snapshot.instances) > 1 and snapshot.placement
    pairs = [("placement", printable(snapshot.placement))] if several else []
    for instance in snapshot.instances:
        words = f"{printable(instance.name)}: decodes {printable(instance.decode_admission)}"
        if instance.burst_blocks:
            words += f", {instance.burst_blocks} blocks kept for bursts"
        if instance.host_blocks and snapshot.compress:
            words += ", host memory packed into 8 bits"
        if instance.decode_admission:
            pairs.append(("room", words))
        if instance.kv_kinds:
            pairs.append(("kv held", f"{printable(instance.name)}: {kinds_held(instance)}"))
        if instance.experts is not UNSET:
            words = f"{printable(instance.name)}: {experts_held(instance.experts)}"
            pairs.append(("experts", words))
        if instance.states is not UNSET:
            pairs.append(("states", f"{printable(instance.name)}: {snapshots(instance.states)}"))
    return pairs


def _gpus(snapshot: Snapshot) -> list[tuple[str, str]]:
    """A line for each instance's GPU that has figures."""
    pairs = zip(snapshot.instances, snapshot.gpus, strict=False)
    return [
        (
            "gpu",
            ", ".join(
                [printable(instance.name), printable(gpu.name or "unnamed"), *gpu_words(gpu)]
            ),
        )
        for instance, gpu in pairs
        if gpu is not None
    ]


def _kept(instances: Sequence[InstanceStatus]) -> list[tuple[str, str]]:
    """A line for each instance that lends blocks, or that packs by the future peak."""
    pairs = []
    for instance in instances:
        if instance.reserved is not None and instance.reserved.lending is not None:
            pairs.append(("lent", f"{printable(instance.name)}: {loan_words(instance.reserved)}"))
        if instance.reserved is not None and instance.reserved.peak is not None:
            text = f"{peak_words(instance.reserved.peak)}, of {instance.kv_blocks}"
            pairs.append(("peak", f"{printable(instance.name)}: {text}"))
    return pairs


def _fallbacks(instances: Sequence[InstanceStatus]) -> list[tuple[str, str]]:
    """A line for each family of kernels that torch replaces, and the reason."""
    return [
        (
            "kernels",
            f"{printable(instance.name)}: torch computes {printable(family)}: {printable(why)}",
        )
        for instance in instances
        for family, why in instance.fallbacks
    ]


def _instances(instances: Sequence[InstanceStatus]) -> str:
    header = ["INSTANCE", "ROLE", "DEVICE", "STATE", "RUN", "WAIT", "KV USED", "BLOCKS"]
    header += ["CACHED", "POOL", "STEP", "P99", "SEQ/TOK"]
    rows = []
    for instance in instances:
        rows.append(_instance(instance))
        rows += [_node(instance.node)] if instance.node else []
        rows += [_rank(instance, number) for number in range(len(instance.ranks))]
    return _table(header, rows)


def _node(node: str) -> list[str]:
    """The row of a node, below the instance that Ray placed on it."""
    return ["  on node", "", printable(node), *[""] * 10]


def _rank(instance: InstanceStatus, number: int) -> list[str]:
    """The row of a rank, below its instance; its memory is that of its process. A stage's bubbles
    stand below the steps' time.
    """
    rank = instance.ranks[number]
    named = [
        f"  rank {number}",
        "",
        f"{printable(rank.device)} pid {rank.pid}".lstrip(),
        printable(rank.state),
    ]
    bubble = bubble_words(instance.bubble_of(number))
    return [*named, "", "", "", "", "", size(rank.memory_bytes), bubble, "", ""]


def _instance(instance: InstanceStatus) -> list[str]:
    used_blocks = instance.kv_used
    used = share(used_blocks, instance.kv_blocks)
    state = instance.state
    if state == "loading":
        done = percent(instance.load_fraction).strip()
        state = f"{printable(instance.load_stage) or state} {done}"
    if instance.drained:
        state = f"{state}, drained"
    return [
        printable(instance.name),
        f"{instance.role}, {printable(instance.pool)}" if instance.pool else instance.role,
        printable(instance.device),
        state,
        str(instance.running),
        str(instance.waiting),
        f"[{bar(used, 10).translate(_ASCII_BAR)}] {percent(used)}",
        f"{used_blocks}/{instance.kv_blocks}",
        str(instance.kv_cached),
        size(instance.kv_blocks * instance.kv_block_bytes),
        latency(instance.step_s if instance.steps else None),
        latency(instance.step_p99_s or None),
        f"{instance.batch_rows}/{instance.batch_tokens}",
    ]


def _queues(snapshot: Snapshot) -> str:
    """Queue levels, host pools and swap links; the links' figures are since the start."""
    header = ["INSTANCE", "POLICY", "SWAP", "HOST USED", "BLOCKS", "OUT", "IN", "LINK"]
    header += ["SEQUENCES BY LEVEL"]
    return _table(header, [_queue(instance, snapshot.uptime_s) for instance in snapshot.instances])


def _queue(instance: InstanceStatus, uptime_s: float) -> list[str]:
    used = share(instance.host_held, instance.host_blocks)
    return [
        printable(instance.name),
        printable(instance.policy),
        printable(instance.swap),
        f"[{bar(used, 10).translate(_ASCII_BAR)}] {percent(used)}",
        f"{instance.host_held}/{instance.host_blocks}",
        size(instance.out_blocks * instance.kv_block_bytes),
        size(instance.in_blocks * instance.kv_block_bytes),
        percent(share(instance.link_s, uptime_s)).strip(),
        level_counts(instance.levels) or queue_words(instance) or "-",
    ]


def _moves(snapshot: Snapshot) -> str:
    """Transfers in flight, then flips, the newest first."""
    lines = [
        transfer_line(transfer, _MOVE_CELLS).plain
        for transfer in snapshot.transfers[:LISTED_SEQUENCES]
    ]
    lines += [flip_line(flip).plain for flip in snapshot.flips[::-1]]
    text = "\n".join(f"  {line.translate(_ASCII_MOVE)}".rstrip() for line in lines)
    return f"  {in_flight(snapshot).replace('·', ';')}\n{text}"


def _sequences(snapshot: Snapshot) -> str:
    header = ["ID", "STATE", "INSTANCE", "AGE", "PROMPT", "COMPUTED", "OUTPUT", "PREDICTED"]
    header += ["LEVEL", "KV AT", "BLOCKS", "HOST", "PRIO", "PREEMPTED"]
    listed = snapshot.sequences[:LISTED_SEQUENCES]
    rows = [_sequence(sequence) for sequence in listed]
    if any(sequence.request_id or sequence.key for sequence in listed):
        header += ["KEY", "REQUEST"]
        for row, sequence in zip(rows, listed, strict=True):
            row += [printable(sequence.key) or "-", printable(sequence.request_id, 200) or "-"]
    table = _table(header, rows)
    more = snapshot.running + snapshot.waiting - len(listed)
    return f"{table}\n  and {more} more" if more > 0 else table


def _sequence(sequence: SequenceStatus) -> list[str]:
    computed = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    return [
        str(sequence.sequence),
        sequence.state,
        printable(sequence.instance) or "-",
        duration(sequence.age_s),
        str(sequence.num_prompt_tokens),
        percent(share(computed, sequence.num_prompt_tokens)).strip(),
        f"{sequence.num_output_tokens}/{sequence.max_tokens}",
        predicted(sequence) or "-",
        str(sequence.level),
        sequence.residency or "-",
        str(sequence.num_blocks),
        str(sequence.num_host_blocks),
        str(sequence.priority),
        str(sequence.preemptions),
    ]


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell; names left, figures right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    left = [name in _LEFT_COLUMNS for name in header]

    def line(row: list[str]) -> str:
        columns = zip(row, widths, left, strict=True)
        return "  ".join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in columns)

    return "\n".join(f"  {line(row)}".rstrip() for row in [header, *rows])
