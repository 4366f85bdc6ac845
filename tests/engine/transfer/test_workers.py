"""KV between two real workers: sequences go on elsewhere, whatever they are stored in."""

import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.protocol.worker import (
    CancelTransfer,
    Copied,
    LinkState,
    NewLink,
    Reply,
    Shutdown,
    StartTransfer,
    TransferOver,
)
from daemon.wire.columns import int32
from tests.engine.tiny import VOCAB_SIZE, greedy, reference, save
from tests.engine.transfer.linked_workers import NUM_BLOCKS, Two, transfers

MORE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def two(folder: str, quick: dict[str, str]) -> Iterator[Two]:
    """Two workers with a plain pool and a host pool, whose link is up."""
    with Two(folder, quick, num_host_blocks=8) as two:
        yield two.joined()


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(2, VOCAB_SIZE) for _ in range(length)]


def go_on(two: Two, tokens: list[int], num_computed: int, targets: list[int]) -> list[int]:
    """Decode there, over blocks that were sent; slots are not given back."""
    plans = two.there.plans
    plans.free_blocks = [block for block in range(NUM_BLOCKS) if block not in targets]
    slot = next(_slots)
    there = plans.add(slot, tokens, shared=targets)
    there.num_computed = num_computed
    outputs = two.there.decode(there, MORE)
    plans.leave(there)
    return outputs


_slots = iter(list(range(8)) * 100)


def computed(two: Two, tokens: list[int]) -> Any:
    """A sequence whose prompt is computed here."""
    plans = two.here.plans
    plans.free_blocks = list(range(NUM_BLOCKS - 1, -1, -1))
    running = plans.add(next(_slots), tokens)
    two.here.step(running, len(tokens))
    plans.leave(running)
    return running


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("length", [32, 27, 16, 5])
def test_a_sequence_goes_on_elsewhere(two: Two, length: int, at_once: bool) -> None:
    tokens = prompt(length)
    running = computed(two, tokens)
    targets = random.Random(length).sample(range(NUM_BLOCKS), len(running.blocks))
    number = two.send(running.blocks, targets, length, at_once=at_once)
    here, there = two.overs(number)
    assert here.num_right == there.num_right == len(targets)
    assert here.why == there.why == "" and there.elapsed_s > 0.0 < here.elapsed_s
    found = running.outputs + go_on(two, running.tokens, length, targets)
    assert found == greedy(reference("llama"), tokens, 1 + MORE)


def test_a_prompt_goes_layer_by_layer_behind_its_own_step(two: Two) -> None:
    """The order comes before the plan, which computes half of what is sent."""
    tokens = prompt(41)
    plans = two.here.plans
    plans.free_blocks = list(range(NUM_BLOCKS))
    running = plans.add(next(_slots), tokens)
    two.here.step(running, 20)
    plan = plans.plan([(running, 21)])
    targets = [50, 3, 17]
    number = two.send(running.blocks, targets, 41, layered=True)
    assert two.here.says_no(TransferOver), "nothing is there yet"
    two.here.worker.send(plan)
    plans.take([(running, 21)], two.here.next(Reply))
    plans.leave(running)
    assert [one.num_right for one in two.overs(number)] == [3, 3]
    found = running.outputs + go_on(two, running.tokens, 41, targets)
    assert found == greedy(reference("llama"), tokens, 1 + MORE)


def test_swapped_blocks_go_straight_on_elsewhere(two: Two) -> None:
    """The order follows the plan that swaps out, with nothing between."""
    tokens = prompt(45)
    running = computed(two, tokens)
    places = [7, 0, 4]
    plans = two.here.plans
    plans.outs = list(zip(running.blocks, places, strict=True))
    targets = [9, 60, 31]
    two.here.worker.send(plans.plan([]))
    number = two.send(places, targets, 45, from_host=True)
    assert [one.num_right for one in two.overs(number)] == [3, 3]
    two.here.next(Reply)
    two.here.next(Copied)
    found = running.outputs + go_on(two, running.tokens, 45, targets)
    assert found == greedy(reference("llama"), tokens, 1 + MORE)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("changes", "from_host"), [({"kv_dtype": "int8"}, False), ({"compress": True}, True)]
)
def test_eight_bits_go_on_as_they_would_have_here(
    folder: str, quick: dict[str, str], changes: dict[str, Any], from_host: bool
) -> None:
    """8-bit KV as it is; packed blocks of the host pool as they would be unpacked here."""
    tokens, places = prompt(27), [2, 1]
    with Two(folder, quick, num_host_blocks=8, **changes) as two:
        two.joined()
        running = computed(two, tokens)
        plans, blocks = two.here.plans, running.blocks
        if from_host:
            plans.outs = list(zip(blocks, places, strict=True))
            two.here.worker.send(plans.plan([]))
        targets = [40, 22]
        number = two.send(places if from_host else blocks, targets, 27, from_host=from_host)
        assert [one.num_right for one in two.overs(number)] == [2, 2]
        elsewhere = go_on(two, running.tokens, 27, targets)
        if from_host:
            two.here.next(Reply)
            back = plans.back(next(_slots), running, places)
            plans.awaits = plans.step + 1
        else:
            back = plans.add(next(_slots), running.tokens, shared=blocks)
            back.num_computed = 27
        assert elsewhere == two.here.decode(back, MORE)
        for one in (two.here, two.there):
            one.worker.send(Shutdown())
            assert one.worker.exit_status() == 0


def test_orders_that_cannot_be_are_answered_at_both_ends(two: Two) -> None:
    for changes, why in (
        ({"targets": [NUM_BLOCKS]}, "beyond the 64 of the receiver's pool"),
        ({"blocks": [-1]}, "beyond the 64 of this pool"),
        ({"blocks": [8], "from_host": True}, "beyond the 8 of the host pool"),
        ({"num_tokens": 17}, "do not hold 17 tokens"),
        ({"from_host": True, "layered": True}, "no step computes"),
        ({"blocks": [1, 2], "targets": [5, 5]}, "a target twice"),
    ):
        fields: dict[str, Any] = {"blocks": [1], "targets": [1], **changes}
        for over in two.overs(two.send(**fields)):
            assert over.num_right == 0 and why in over.why
    number = two.send([1], [1], link=two.number - 1)
    over = two.here.next(TransferOver)
    assert (over.transfer, over.num_right) == (number, 0) and "no such link" in over.why
    unknown = next(transfers)
    two.here.worker.send(StartTransfer(unknown, 7, int32([1]), int32([1]), 16))
    assert two.here.next(TransferOver).transfer == unknown
    two.here.worker.send(CancelTransfer(unknown))
    assert [one.num_right for one in two.overs(two.send([1], [1]))] == [1, 1]
    assert two.there.says_no(TransferOver), "it never heard of those without a link"


def test_what_is_stopped_is_answered_at_both_ends(two: Two) -> None:
    number = two.send([1, 2], [3, 4], layered=True)  # no step follows
    two.here.worker.send(CancelTransfer(number))
    for over in two.overs(number):
        assert (over.num_right, over.why) == (0, "it was cancelled")


def test_a_newer_link_answers_for_the_older_one(two: Two) -> None:
    older = two.number
    number = two.send([1, 2], [3, 4], layered=True)  # no step follows: it stays open
    assert two.here.says_no(TransferOver)
    two.join()
    over = two.here.next(TransferOver)
    assert (over.transfer, over.num_right) == (number, 0)
    for one, peer in ((two.here, 1), (two.there, 0)):
        down, up = one.next(LinkState), one.next(LinkState)
        assert (down.peer, down.is_up, down.link) == (peer, False, older)
        assert (up.peer, up.is_up, up.link) == (peer, True, two.number)
    assert two.there.says_no(TransferOver, 0.1), "it never heard of it"
    running = computed(two, prompt(20))
    assert [one.num_right for one in two.overs(two.send(running.blocks, [1, 2], 20))] == [2, 2]


def test_a_peer_that_never_answers_leaves_steps_running(two: Two) -> None:
    """The ends of links are held here, and nobody speaks."""
    silent = [socket.socketpair() for _ in range(2)]
    for number, (sends, (theirs, _)) in enumerate(zip((True, False), silent, strict=True)):
        two.here.worker.link(NewLink(5, sends, 900 + number), theirs)
    assert two.here.says_no(LinkState)
    running = computed(two, prompt(20))
    assert two.here.decode(running, MORE) == greedy(reference("llama"), prompt(20), 1 + MORE)
    number = two.send(running.blocks[:1], [9])
    assert [one.num_right for one in two.overs(number)] == [1, 1], "nor is another link held up"
    silent[0][1].close()
    down = two.here.next(LinkState)
    assert (down.peer, down.sends, down.is_up, down.link) == (5, True, False, 900)
    later = socket.socketpair()  # which has the other one give up
    two.here.worker.link(NewLink(5, False, 902), later[0])
    down = two.here.next(LinkState)
    assert (down.peer, down.sends, down.is_up, down.link) == (5, False, False, 901)
    later[1].close()
    assert two.here.next(LinkState).link == 902
