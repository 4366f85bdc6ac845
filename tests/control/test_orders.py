"""Every order has a rule, and whatever carries orders out has its method."""

from inspect import signature
from typing import get_args

import msgspec
import pytest

from daemon.control.orders import ORDERS
from daemon.protocol.control import Order
from daemon.runtime.operations import Operations
from tests.control.orders import Written


def test_every_order_has_a_rule() -> None:
    assert set(ORDERS) == set(get_args(Order))


@pytest.mark.parametrize("operator", [Operations, Written])
def test_methods_take_the_fields_of_their_orders(operator: type) -> None:
    for order, rule in ORDERS.items():
        taken = list(signature(getattr(operator, rule.method)).parameters)[1:]
        assert taken == [field.name for field in msgspec.structs.fields(order)]
