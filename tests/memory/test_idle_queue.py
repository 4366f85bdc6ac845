"""Idle blocks leave in the order in which they came, whichever were taken in between."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.memory.idle_queue import IdleQueue

NUM_BLOCKS = 6

changes = st.one_of(
    st.tuples(st.just("push"), st.sets(st.integers(0, NUM_BLOCKS - 1), max_size=4)),
    st.tuples(st.just("take"), st.integers(0, NUM_BLOCKS - 1)),
    st.tuples(st.just("pop"), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(changes, max_size=80))
def test_it_is_an_ordered_dict_that_is_popped_from_the_front(script: list) -> None:
    queue, model = IdleQueue(NUM_BLOCKS), OrderedDict[int, None]()
    for kind, what in script:
        if kind == "push":
            new = [block for block in what if block not in model]
            queue.push(np.array(new, np.intp))
            model.update(dict.fromkeys(new))
        elif kind == "take" and what in model:
            queue.take([what])
            del model[what]
        elif kind == "pop" and what <= len(model):
            popped = [model.popitem(last=False)[0] for _ in range(what)]
            assert queue.pop(what).tolist() == popped
        assert queue.blocks().tolist() == list(model)
        assert queue.size == len(model)
        assert [block for block in range(NUM_BLOCKS) if block in queue] == sorted(model)


def test_what_is_not_there_cannot_be_had() -> None:
    queue = IdleQueue(2)
    queue.push(np.array([1]))
    with pytest.raises(IndexError):
        queue.pop(2)
    with pytest.raises(LookupError):
        queue.take([0])
    assert queue.blocks().tolist() == [1]
