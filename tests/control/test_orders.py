"""Every order has a check, one name everywhere, and its method where orders are carried out."""

import argparse
import re
from inspect import signature
from typing import get_args

import msgspec
import pytest

from daemon.cli.ctl_flags import add_ctl
from daemon.control import client
from daemon.control.orders import ORDERS, method_of
from daemon.core.values.events import Event
from daemon.protocol.control import Cap, Order, Reload
from daemon.runtime.operations import Operations
from daemon.runtime.runtime import Runtime
from tests.control.orders import Written

FORMS = {"choose", "chosen", "ordered", "begun"}
"""Words that make an order or an event of what is ordered."""


def test_every_order_has_a_check() -> None:
    assert set(ORDERS) == set(get_args(Order))


@pytest.mark.parametrize("operator", [Operations, Written])
def test_methods_take_the_fields_of_their_orders(operator: type) -> None:
    for order in ORDERS:
        taken = list(signature(getattr(operator, method_of(order))).parameters)[1:]
        assert taken == [field.name for field in msgspec.structs.fields(order)]


def stems(name: str) -> set[str]:
    """What is ordered: the beginnings of the words of a name."""
    words = re.findall("[A-Z]?[a-z]+", name)
    return {word.lower()[:5] for word in words if word.lower() not in FORMS}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_has_one_name_from_the_command_to_the_journal(order: type[Order]) -> None:
    parser = argparse.ArgumentParser()
    add_ctl(parser)
    (verbs,) = (each.choices for each in parser._actions if each.dest == "verb")
    named = stems(order.__name__)
    assert verbs is not None and any(stems(verb) <= named for verb in verbs)
    assert hasattr(client, method_of(order))
    if order in (Cap, Reload):  # a card's limit is not the Core's; a reload may change nothing
        return
    assert hasattr(Runtime, method_of(order))
    (event,) = (each for each in get_args(Event) if stems(each.__name__) == named)
    assert event.__struct_config__.tag == event.__name__
