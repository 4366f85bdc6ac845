"""An invented daemon: snapshots that move as a busy one's would, the same for the same moment."""

import math

import msgspec
import numpy as np

from daemon.protocol.control import (
    BlockOwners,
    BlockUse,
    ByKind,
    Cause,
    Counters,
    FlipStatus,
    GpuStatus,
    InstanceStatus,
    KindStatus,
    Mark,
    PredictorStatus,
    Role,
    SequenceStatus,
    Snapshot,
    Story,
    TransferStatus,
    What,
)
from daemon.state.pause import NO_PAUSES, one_more
from daemon.wire.columns import UInt8, int32

BLOCK_BYTES = 1_474_560
STATES = ("decode", "decode", "decode", "prefill", "decode", "preempted")


def block_map(num_blocks: int, used: float, seed: int) -> UInt8:
    """A pool of uint8 [num_blocks] of which about the share `used` is held, in clumps."""
    random = np.random.default_rng(seed)
    noise = np.convolve(random.random(num_blocks + 32), np.ones(33) / 33, mode="valid")
    cells = np.full(num_blocks, BlockUse.FREE, dtype=np.uint8)
    order = np.argsort(noise, kind="stable")
    held = int(used * num_blocks)
    cells[order[:held]] = BlockUse.HELD
    cells[order[held : held + num_blocks // 8]] = BlockUse.CACHED
    cells[order[held + num_blocks // 8 : held + num_blocks // 6]] = BlockUse.FENCED
    return cells


def instance(
    name: str, step: int, *, role: str = "mixed", num_blocks: int = 2048
) -> InstanceStatus:
    """A ready instance `step` half seconds after the start."""
    used = 0.45 + 0.2 * math.sin(step / 15 + len(role))
    cells = block_map(num_blocks, used, step // 8 + 100 * len(role))
    counts = np.bincount(cells, minlength=4)
    return InstanceStatus(
        name=name,
        role=role,
        device=f"cuda:{name[-1]}" if name[-1].isdigit() else "cpu",
        state="ready",
        policy="sarathi",
        running=18 + step % 5,
        waiting=3,
        kv_blocks=num_blocks,
        kv_free=int(counts[BlockUse.FREE]),
        kv_held=int(counts[BlockUse.HELD]),
        kv_cached=int(counts[BlockUse.CACHED]),
        kv_fenced=int(counts[BlockUse.FENCED]),
        kv_block_bytes=BLOCK_BYTES,
        block_map=cells,
        steps_in_flight=1 + step % 2,
        steps=40 * step,
        step_s=0.0125 + 0.002 * math.sin(step / 4),
        batch_rows=18 + step % 5,
        batch_tokens=256 + 16 * (step % 7),
    )


def by_kind(pool: InstanceStatus, uses: list[int], kinds: list[int]) -> InstanceStatus:
    """A pool whose blocks are of layers of three kinds, one of which this viewer does not know."""
    names = ("full", "window", "new kind")
    pairs = list(zip(uses, kinds, strict=True))
    counts = [
        {use: pairs.count((use, kind)) for use in (BlockUse.HELD, BlockUse.FENCED, BlockUse.CACHED)}
        for kind in range(len(names))
    ]
    return msgspec.structs.replace(
        pool,
        kv_blocks=len(uses),
        kv_held=uses.count(BlockUse.HELD),
        block_map=np.array(uses, np.uint8),
        by_kind=ByKind(
            tuple(
                KindStatus(name, 4096 * (name == "window"), 2, *of_kind.values())
                for name, of_kind in zip(names, counts, strict=True)
            ),
            np.array(kinds, np.uint8),
        ),
    )


def loading(name: str, fraction: float) -> InstanceStatus:
    """An instance that still reads its weights."""
    return msgspec.structs.replace(
        instance(name, 0),
        state="loading",
        running=0,
        waiting=0,
        kv_blocks=0,
        kv_free=0,
        kv_held=0,
        kv_cached=0,
        kv_fenced=0,
        block_map=np.zeros(0, dtype=np.uint8),
        steps=0,
        step_s=0.0,
        batch_rows=0,
        batch_tokens=0,
        load_stage="loading weights",
        load_fraction=fraction,
    )


def sequence(index: int, step: int, instances: tuple[str, ...]) -> SequenceStatus:
    """One running sequence; most decode."""
    state = STATES[index % len(STATES)]
    prompt = 64 + 97 * (index * 7 % 19)
    computed = prompt * (1 + step % 9) // 10 if state == "prefill" else prompt
    output = 0 if state == "prefill" else (step * 4 + index * 13) % 256
    return SequenceStatus(
        sequence=1000 + index,
        state=state,
        instance=instances[index % len(instances)],
        age_s=0.7 + index * 1.37 + step * 0.5,
        num_prompt_tokens=prompt,
        num_computed_tokens=computed + output,
        num_output_tokens=output,
        max_tokens=256,
        num_blocks=0 if state == "preempted" else -(-(computed + output) // 16),
        priority=index % 3 - 1,
        preemptions=1 if state == "preempted" else 0,
    )


def waiting(index: int) -> SequenceStatus:
    """One sequence that has not been scheduled yet."""
    return SequenceStatus(
        2000 + index, "waiting", "", 0.2 + 0.31 * index, 300 + 41 * index, 0, 0, 512, 0, 0, 0
    )


def snapshot(
    step: int,
    *,
    names: tuple[str, ...] = ("gpu0", "gpu1"),
    num_running: int = 24,
    num_waiting: int = 6,
) -> Snapshot:
    """A busy daemon `step` half seconds after its start."""
    roles = ("prefill", "decode") if len(names) == 2 else ("mixed",) * len(names)
    instances = tuple(instance(n, step, role=r) for n, r in zip(names, roles, strict=True))
    rows = [sequence(i, step, names) for i in range(num_running)]
    rows += [waiting(i) for i in range(num_waiting)]
    preempted = sum(row.state == "preempted" for row in rows)
    requests = step * 3
    return Snapshot(
        version="0.1.0",
        pid=4242,
        uptime_s=3600 + step / 2,
        time_s=100 + step / 2,
        status="ready",
        ready=True,
        draining=False,
        url="http://127.0.0.1:8000",
        model="SmolLM2-135M-Instruct",
        root="/models/SmolLM2-135M-Instruct",
        context_len=8192,
        max_len=8192,
        block_size=16,
        instances=instances,
        sequences=tuple(rows[:500]),
        running=num_running - preempted,
        waiting=num_waiting + preempted,
        counters=Counters(
            requests=requests,
            finished=max(0, requests - num_running),
            preemptions=step // 10,
            prompt_tokens=step * 700,
            cached_tokens=step * 180,
            computed_tokens=step * 700,
            output_tokens=int(step * 620 + 2600 * math.sin(step / 6) + 2600),
            ttft_count=requests,
            ttft_sum_s=requests * 0.16 + 0.6 * math.sin(step / 5),
            tpot_count=max(0, requests - num_running),
            tpot_sum_s=max(0, requests - num_running) * 0.014,
        ),
        policies=("sarathi", "mlfq", "speculative"),
    )


def moving(step: int, num_instances: int = 2) -> Snapshot:
    """The busy daemon with KV on its way between its instances, and an instance flipped.

    The last of several is drained and holds remote KV; where there is one, nothing moves.
    """
    names = tuple(f"gpu{index}" for index in range(num_instances))
    busy = snapshot(step, names=names)
    if num_instances == 1:
        return busy
    roles = ("prefill", "decode", "mixed")
    instances = [
        msgspec.structs.replace(
            one,
            role=Role(roles[index % 3]),
            step_p99_s=0.021,
            remote_kvs=index,
            remote_kv_blocks=90 * index,
        )
        for index, one in enumerate(busy.instances)
    ]
    instances[-1] = msgspec.structs.replace(instances[-1], drained=True)
    transfers = tuple(
        TransferStatus(
            *(
                index,
                1000 + index,
                names[index % num_instances],
                names[(index + 1) % num_instances],
            ),
            *(9 * index + 4, (9 * index + 4) * BLOCK_BYTES, 0.03 * (index + 1), 0.1 * (index != 3)),
            *(index % 2 == 0, index == 5),
        )
        for index in range(2 * num_instances)
    )
    return msgspec.structs.replace(
        busy,
        instances=tuple(instances),
        transfers=transfers,
        flips=(
            FlipStatus(1, names[1], Role.MIXED, Role.DECODE, "load", 95.0, 0.12, 2.5, False),
            FlipStatus(2, names[0], Role.MIXED, Role.PREFILL, "operator", 1.5, 0.25, -1.0, False),
        ),
        counters=msgspec.structs.replace(
            busy.counters, handoffs=40, handoff_sum_s=2.0, handoffs_failed=1, flips=2
        ),
    )


def drafting(busy: Snapshot) -> Snapshot:
    """The same where rows draft from their own tokens."""
    counted = {"drafts": 120, "draft_tokens": 400, "accepted_tokens": 300}
    return msgspec.structs.replace(busy, counters=msgspec.structs.replace(busy.counters, **counted))


PLACES = ("device", "device", "both", "device", "moving", "host")
RATE_OUT, RATE_IN = 3, 2  # blocks swapped each half second


def swapping(
    step: int, *, names: tuple[str, ...] = ("gpu0", "gpu1"), num_running: int = 24
) -> Snapshot:
    """The busy daemon with queue levels, a host pool and predictions."""
    busy = snapshot(step, names=names, num_running=num_running)
    instances = tuple(
        msgspec.structs.replace(
            one,
            policy="mlfq",
            swap="proactive",
            host_blocks=1024,
            host_held=320 + step % 64,
            out_blocks=RATE_OUT * step,
            in_blocks=RATE_IN * step,
            link_s=0.17 * step,
            levels=(12 + step % 3, 8, 0, 3, 0, 0, 1, 0),
        )
        for one in busy.instances
    )
    counters = msgspec.structs.replace(
        busy.counters,
        preemptions=40,
        swaps_out=30,
        swaps_in=28,
        prediction_count=50,
        prediction_error_sum=11.5,
        prediction_errors=(5, 8, 12, 10, 6, 4, 2, 1, 1, 1, 0, 0, 0),
        predictions_near=41,
        pauses=one_more(one_more(NO_PAUSES, Cause.SWAPPED, 2.0, 30), Cause.RECOMPUTED, 4.0, 10),
    )
    sequences = tuple(_foreseen(one) for one in busy.sequences)
    return msgspec.structs.replace(
        busy,
        instances=instances,
        sequences=sequences,
        counters=counters,
        predictor=PredictorStatus("mean", up=True, asks=60, dropped=2, answers=50, took_sum_s=0.01),
    )


def _foreseen(one: SequenceStatus) -> SequenceStatus:
    """The sequence with a prediction, a level and a place for its blocks."""
    if one.state == "waiting":
        return msgspec.structs.replace(one, predicted_tokens=-1, level=1)
    index = one.sequence - 1000
    place = PLACES[index % len(PLACES)]
    return msgspec.structs.replace(
        one,
        predicted_tokens=60 + 20 * (index % 5),
        level=index % 4,
        residency=place,
        num_host_blocks={"device": 0, "host": 41}.get(place, 12),
    )


def with_gpus(one: Snapshot) -> Snapshot:
    """The same daemon on cards that can be asked."""
    gpu = GpuStatus("NVIDIA Fake 9000", 21 << 30, 24 << 30, 71.5, 250.0, 61, 37)
    return msgspec.structs.replace(one, gpus=(gpu,) * len(one.instances))


def story(sequence: int, time_s: float) -> Story:
    """A life with everything in it, 22 seconds long at `time_s`; it was preempted twice."""
    marks = [
        (0.0, What.ARRIVED, 1422, -1),
        (0.0, What.QUEUED, 0, -1),
        (0.01, What.PREDICTED, 120, -1),
        (1.4, What.ADMITTED, 160, -1),
        (1.4, What.CHUNK, 512, -1),
        (1.9, What.CHUNK, 512, -1),
        (2.4, What.CHUNK, 238, -1),
        (2.8, What.FIRST, 0, -1),
        (5.0, What.DEMOTED, 1, -1),
        (6.2, What.GAVE_WAY, 1440, 1010),
        (9.5, What.FETCHED, 1440, -1),
        (9.6, What.RESTORED, 0, -1),
        (9.7, What.RESUMED, 3500, Cause.SWAPPED),
        (12.0, What.OUT_OF_BLOCKS, 0, 1004),
        (15.0, What.ADMITTED, 1000, -1),
        (15.0, What.CHUNK, 490, -1),
    ]
    since_s = time_s - 22
    status = next(
        (s for s in swapping(round(2 * (time_s - 100))).sequences if s.sequence == sequence), None
    )
    return Story(
        sequence,
        time_s,
        tuple(Mark(since_s + at_s, what, amount, other) for at_s, what, amount, other in marks),
        3,
        status,
        int32([*range(40, 90), *range(120, 140), 7]),
        since_s + 2.8,
        since_s + 25.0,
        10.5,
        3.25,
    )


def moved_story(sequence: int, time_s: float) -> Story:
    """A life on two instances: the answer began on the first and goes on at the second."""
    marks = [
        (0.0, What.ARRIVED, 700, -1),
        (0.0, What.QUEUED, 0, -1),
        (0.5, What.ADMITTED, 0, -1),
        (0.5, What.CHUNK, 700, -1),
        (1.5, What.FIRST, 0, -1),
        (3.0, What.SENT_AHEAD, 48, 1),
        (4.0, What.LEFT, 790, 1),
        (4.0, What.QUEUED, 1, -1),
        (4.2, What.ADMITTED, 768, -1),
        (4.5, What.LANDED, 790, -1),
    ]
    since_s = time_s - 6
    told = tuple(Mark(since_s + at_s, what, amount, other) for at_s, what, amount, other in marks)
    status = next((s for s in moving(36).sequences if s.sequence == sequence), None)
    return Story(sequence, time_s, told, 0, status, int32([4, 5]), since_s + 1.5)


def owners(one: Snapshot, instance: int = 0) -> BlockOwners:
    """Every held block of an instance has an owner; 37 neighbours to the same."""
    held = one.instances[instance].block_map == BlockUse.HELD
    who = np.where(held, 1000 + np.arange(held.size) // 37 % 24, -1).astype(np.int64)
    return BlockOwners(instance, one.time_s, who, int32(held * (1 + np.arange(held.size) % 2)))


def starting(fraction: float, left_s: float = -1.0) -> Snapshot:
    """A daemon whose one instance still loads."""
    return msgspec.structs.replace(
        snapshot(0, num_running=0, num_waiting=0),
        uptime_s=2.0,
        ready=False,
        status=f"loading weights {round(fraction * 100)} %",
        instances=(msgspec.structs.replace(loading("gpu0", fraction), load_left_s=left_s),),
    )
